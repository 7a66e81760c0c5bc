// The capture of a state, as Python calls it.
#include "python.hpp"

#include "capture.hpp"

namespace {

using namespace core;

// How many units of work each row and those before it have; false if a row reaches outside.
bool count_units(const ckh::Capture &work, std::size_t arena_bytes, std::size_t digests,
                 std::vector<std::size_t> &units) {
    for (std::size_t i = 0; i < work.count; i++) {
        const ckh::CaptureRow row = ckh::CaptureRow::at(work.rows, i);
        if (row.grain < 1) return false;
        const std::size_t chunks = row.chunks(work.chunk_bytes);
        const bool copies = !(row.flags & ckh::kCaptureCompare);
        if (copies && (row.offset > arena_bytes || row.bytes > arena_bytes - row.offset)) return false;
        if (!copies && !(row.flags & ckh::kCaptureDigest)) return false;
        if (row.first > digests || chunks > digests - row.first || row.known > chunks) return false;
        const std::size_t step = row.unit(work.chunk_bytes);
        units[i + 1] = units[i] + (chunks + step - 1) / step;
    }
    return true;
}

PyObject *capture(PyObject *, PyObject *args) {
    Buffer rows, arena, parent, digests, held;
    Py_ssize_t chunk_bytes, variant, threads;
    unsigned long long limit;
    if (!PyArg_ParseTuple(args, "O&nO&O&O&O&Knn", Buffer::read, &rows, &chunk_bytes, Buffer::write,
                          &arena, Buffer::read, &parent, Buffer::write, &digests, Buffer::write,
                          &held, &limit, &variant, &threads)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes)) return refuse(kBadChunkSize);
    if (!is_variant(variant)) return refuse("no such variant");
    if (threads < 1) return refuse("threads must be at least 1");
    const std::size_t count = rows.bytes() / (8 * ckh::kCaptureColumns);
    if (!rows.holds_u64(count * ckh::kCaptureColumns)) return refuse("a row has seven words");
    const std::size_t total = held.bytes();
    if (!digests.holds_u64(2 * total) || !parent.holds_u64(2 * total)) {
        return refuse("there is one digest, before and after, for each chunk");
    }
    ckh::Capture work{rows.u64(), count, static_cast<std::size_t>(chunk_bytes), arena.u8(),
                      parent.u64(), digests.u64(), held.u8(), limit,
                      variants()[static_cast<std::size_t>(variant)].digest_chunks, nullptr};
    std::vector<std::size_t> units;
    try {
        units.resize(count + 1);
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
    if (!count_units(work, arena.bytes(), total, units)) {
        return refuse("a row reaches outside of the arena or the digests");
    }
    work.units = units.data();
    Py_BEGIN_ALLOW_THREADS;
    ckh::capture_regions(work, static_cast<std::size_t>(threads));
    Py_END_ALLOW_THREADS;
    if (work.full) return PyLong_FromLong(-1);
    return PyLong_FromUnsignedLongLong(work.taken);
}

PyMethodDef methods[] = {
    {"capture", capture, METH_VARARGS, "Digest regions in place and copy what changed."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_capture(PyObject *module) { return PyModule_AddFunctions(module, methods); }
