// What changed in a region, as Python calls it.
#include "python.hpp"

#include "diff.hpp"

namespace {

using namespace core;

ckh::Digests digests_in(const Buffer &buffer) { return {buffer.u64(), buffer.digest_count()}; }

PyObject *classify_chunks(PyObject *, PyObject *args) {
    Buffer data, digests, parent, kinds;
    Py_ssize_t chunk_bytes;
    if (!PyArg_ParseTuple(args, "O&nO&O&O&", Buffer::read, &data, &chunk_bytes, Buffer::read,
                          &digests, Buffer::read, &parent, Buffer::write, &kinds)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes)) return refuse(kBadChunkSize);
    const auto chunk = static_cast<std::size_t>(chunk_bytes);
    const std::size_t count = chunk_count(data.bytes(), chunk);
    if (!digests.holds_u64(2 * count) || kinds.bytes() != count || !parent.holds_digests()) {
        return refuse("digests and kinds must have one entry for each chunk");
    }
    std::size_t runs;
    Py_BEGIN_ALLOW_THREADS;
    runs = ckh::classify_chunks({data.u8(), data.bytes(), chunk}, digests_in(digests),
                                digests_in(parent), kinds.u8());
    Py_END_ALLOW_THREADS;
    return PyLong_FromSize_t(runs);
}

PyObject *collect_runs(PyObject *, PyObject *args) {
    Buffer data, kinds, kind, start, length, pattern;
    Py_ssize_t chunk_bytes;
    if (!PyArg_ParseTuple(args, "O&nO&O&O&O&O&", Buffer::read, &data, &chunk_bytes, Buffer::read,
                          &kinds, Buffer::write, &kind, Buffer::write, &start, Buffer::write,
                          &length, Buffer::write, &pattern)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes)) return refuse(kBadChunkSize);
    const auto chunk = static_cast<std::size_t>(chunk_bytes);
    const std::size_t count = chunk_count(data.bytes(), chunk);
    const ckh::Region region{data.u8(), data.bytes(), chunk};
    if (kinds.bytes() != count || !start.holds_u64(kind.bytes()) ||
        !length.holds_u64(kind.bytes()) || !pattern.holds_u64(kind.bytes())) {
        return refuse("kinds must have one entry for each chunk, the columns one for each run");
    }
    bool fits;
    Py_BEGIN_ALLOW_THREADS;
    fits = ckh::collect_runs(region, kinds.u8(), kind.bytes(),
                             {kind.u8(), start.u64(), length.u64(), pattern.u64()});
    Py_END_ALLOW_THREADS;
    if (!fits) return refuse("there are not as many runs as the columns have entries");
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"classify_chunks", classify_chunks, METH_VARARGS, "Compare chunks with their parent."},
    {"collect_runs", collect_runs, METH_VARARGS, "Join chunks of one kind to runs."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_diff(PyObject *module) { return PyModule_AddFunctions(module, methods); }
