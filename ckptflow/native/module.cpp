// ckptflow.native._core: the native functions as Python sees them.
//
// Limited API, so that one build serves Python 3.11 and later. Every function takes buffers that
// ckptflow.data has made and checked (_core.pyi gives their shapes), works without the GIL, and
// writes into arrays it is given: fresh pages cost more than the work. What is checked here is
// what would otherwise read or write outside of a buffer.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ckh128_cpu.hpp"
#include "diff.hpp"
#include "ranges.hpp"

namespace {

// Holds a buffer for as long as a call needs it.
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() {
        if (held_) PyBuffer_Release(&view_);
    }

    // For "O&" of PyArg_ParseTuple: a readable buffer, or None for an empty one.
    static int read(PyObject *object, void *slot) { return take(object, slot, PyBUF_SIMPLE); }
    static int write(PyObject *object, void *slot) { return take(object, slot, PyBUF_WRITABLE); }

    std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }
    ckh_u8 *u8() const { return static_cast<ckh_u8 *>(view_.buf); }
    ckh_u64 *u64() const { return static_cast<ckh_u64 *>(view_.buf); }
    bool holds_u64(std::size_t count) const {
        return bytes() == 8 * count && reinterpret_cast<std::uintptr_t>(view_.buf) % 8 == 0;
    }
    bool holds_digests() const { return bytes() % 16 == 0 && holds_u64(bytes() / 8); }
    ckh::Digests digests() const { return {u64(), bytes() / 16}; }

  private:
    static int take(PyObject *object, void *slot, int flags) {
        auto *buffer = static_cast<Buffer *>(slot);
        if (object == Py_None && flags == PyBUF_SIMPLE) return 1;
        if (PyObject_GetBuffer(object, &buffer->view_, flags) != 0) return 0;
        buffer->held_ = true;
        return 1;
    }

    Py_buffer view_{};
    bool held_ = false;
};

PyObject *refuse(const char *message) {
    PyErr_SetString(PyExc_ValueError, message);
    return nullptr;
}

const std::vector<ckh::Variant> &variants() {
    static const std::vector<ckh::Variant> found = ckh::variants();
    return found;
}

std::size_t chunk_count(std::size_t length, std::size_t chunk_bytes) {
    return length / chunk_bytes + (length % chunk_bytes != 0);
}

bool is_chunk_size(Py_ssize_t chunk_bytes) { return chunk_bytes >= 16 && chunk_bytes % 8 == 0; }

PyObject *core_variants(PyObject *, PyObject *) {
    PyObject *names = PyTuple_New(static_cast<Py_ssize_t>(variants().size()));
    if (names == nullptr) return nullptr;
    Py_ssize_t i = 0;
    for (const ckh::Variant &variant : variants()) {
        PyObject *name = PyUnicode_FromString(variant.name);
        if (name == nullptr || PyTuple_SetItem(names, i++, name) != 0) {
            Py_DECREF(names);
            return nullptr;
        }
    }
    return names;
}

PyObject *core_digest_chunks(PyObject *, PyObject *args) {
    Buffer data, out;
    Py_ssize_t chunk_bytes, variant, threads;
    if (!PyArg_ParseTuple(args, "O&nO&nn", Buffer::read, &data, &chunk_bytes, Buffer::write, &out,
                          &variant, &threads)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes)) return refuse("chunk_bytes must be a multiple of 8 from 16 on");
    if (variant < 0 || static_cast<std::size_t>(variant) >= variants().size()) {
        return refuse("no such variant");
    }
    if (threads < 1) return refuse("threads must be at least 1");
    const auto chunk = static_cast<std::size_t>(chunk_bytes);
    const std::size_t count = out.bytes() / 16;
    // One digest of nothing is a digest too; otherwise there is one for each chunk.
    const bool whole = count == 1 && data.bytes() <= chunk;
    if (!out.holds_digests() || !(whole || count == chunk_count(data.bytes(), chunk))) {
        return refuse("out must hold one aligned digest for each chunk");
    }
    const ckh::ChunksFunction digest = variants()[static_cast<std::size_t>(variant)].digest_chunks;
    Py_BEGIN_ALLOW_THREADS;
    ckh::digest_chunks_parallel(digest, data.u8(), data.bytes(), chunk, count, out.u64(),
                                static_cast<std::size_t>(threads));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *core_digest_parents(PyObject *, PyObject *args) {
    Buffer children, old_children, old_parents, out;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", Buffer::read, &children, Buffer::read, &old_children,
                          Buffer::read, &old_parents, Buffer::write, &out)) {
        return nullptr;
    }
    const auto level_above = [](const Buffer &level) { return (level.bytes() / 16 + 1) / 2; };
    if (!children.holds_digests() || !old_children.holds_digests() ||
        !old_parents.holds_u64(2 * level_above(old_children)) ||
        !out.holds_u64(2 * level_above(children))) {
        return refuse("a level above has half as many aligned digests, rounded up");
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::digest_parents(children.digests(), old_children.digests(), old_parents.digests(),
                        out.u64());
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *core_classify_chunks(PyObject *, PyObject *args) {
    Buffer data, digests, parent, kinds;
    Py_ssize_t chunk_bytes;
    if (!PyArg_ParseTuple(args, "O&nO&O&O&", Buffer::read, &data, &chunk_bytes, Buffer::read,
                          &digests, Buffer::read, &parent, Buffer::write, &kinds)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes)) return refuse("chunk_bytes must be a multiple of 8 from 16 on");
    const auto chunk = static_cast<std::size_t>(chunk_bytes);
    const std::size_t count = chunk_count(data.bytes(), chunk);
    if (!digests.holds_u64(2 * count) || kinds.bytes() != count || !parent.holds_digests()) {
        return refuse("digests and kinds must have one entry for each chunk");
    }
    std::size_t runs;
    Py_BEGIN_ALLOW_THREADS;
    runs = ckh::classify_chunks({data.u8(), data.bytes(), chunk}, digests.digests(),
                                parent.digests(), kinds.u8());
    Py_END_ALLOW_THREADS;
    return PyLong_FromSize_t(runs);
}

PyObject *core_collect_runs(PyObject *, PyObject *args) {
    Buffer data, kinds, kind, start, length, pattern;
    Py_ssize_t chunk_bytes;
    if (!PyArg_ParseTuple(args, "O&nO&O&O&O&O&", Buffer::read, &data, &chunk_bytes, Buffer::read,
                          &kinds, Buffer::write, &kind, Buffer::write, &start, Buffer::write,
                          &length, Buffer::write, &pattern)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes)) return refuse("chunk_bytes must be a multiple of 8 from 16 on");
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

PyObject *core_copy_ranges(PyObject *, PyObject *args) {
    Buffer source, target, source_start, target_start, length;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&", Buffer::read, &source, Buffer::write, &target,
                          Buffer::read, &source_start, Buffer::read, &target_start, Buffer::read,
                          &length)) {
        return nullptr;
    }
    const std::size_t count = length.bytes() / 8;
    if (!length.holds_u64(count) || !source_start.holds_u64(count) ||
        !target_start.holds_u64(count) ||
        !ckh::ranges_fit(source_start.u64(), length.u64(), count, source.bytes()) ||
        !ckh::ranges_fit(target_start.u64(), length.u64(), count, target.bytes())) {
        return refuse("a range lies outside of its buffer");
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::copy_ranges(source.u8(), target.u8(), source_start.u64(), target_start.u64(),
                     length.u64(), count);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *core_fill_ranges(PyObject *, PyObject *args) {
    Buffer target, start, length, pattern;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", Buffer::write, &target, Buffer::read, &start,
                          Buffer::read, &length, Buffer::read, &pattern)) {
        return nullptr;
    }
    const std::size_t count = length.bytes() / 8;
    if (!length.holds_u64(count) || !start.holds_u64(count) || !pattern.holds_u64(count) ||
        !ckh::ranges_fit(start.u64(), length.u64(), count, target.bytes())) {
        return refuse("a range lies outside of its buffer");
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::fill_ranges(target.u8(), start.u64(), length.u64(), pattern.u64(), count);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"variants", core_variants, METH_NOARGS, "Instruction sets this CPU can use, fastest first."},
    {"digest_chunks", core_digest_chunks, METH_VARARGS, "Digest every chunk of a buffer."},
    {"digest_parents", core_digest_parents, METH_VARARGS, "Digest one level of a Merkle tree."},
    {"classify_chunks", core_classify_chunks, METH_VARARGS, "Compare chunks with their parent."},
    {"collect_runs", core_collect_runs, METH_VARARGS, "Join chunks of one kind to runs."},
    {"copy_ranges", core_copy_ranges, METH_VARARGS, "Copy many ranges between two buffers."},
    {"fill_ranges", core_fill_ranges, METH_VARARGS, "Fill many ranges with their patterns."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", "Native digests, diff and range copies of ckptflow.",
    0, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
