// Live arrays, many at a time, as Python calls it: where they lie, and their bytes.
#include "python.hpp"

#include "memory.hpp"
#include "ranges.hpp"

#include <new>
#include <vector>

namespace {

using namespace core;

// How many there are before each of some ranges, and in all; false without memory for it.
template <typename Count>
bool sum_up(std::size_t count, Count count_of, std::vector<ckh_u64> &edges) {
    try {
        edges.resize(count + 1);
    } catch (const std::bad_alloc &) {
        return false;
    }
    for (std::size_t i = 0; i < count; i++) edges[i + 1] = edges[i] + count_of(i);
    return true;
}

PyObject *copy_memory(PyObject *, PyObject *args) {
    Buffer address, length, target, start;
    Py_ssize_t threads;
    if (!PyArg_ParseTuple(args, "O&O&O&O&n", Buffer::read, &address, Buffer::read, &length,
                          Buffer::write, &target, Buffer::read, &start, &threads)) {
        return nullptr;
    }
    const std::size_t count = length.bytes() / 8;
    if (threads < 1) return refuse("threads must be at least 1");
    if (!length.holds_u64(count) || !address.holds_u64(count) || !start.holds_u64(count) ||
        !ckh::ranges_fit(start.u64(), length.u64(), count, target.bytes())) {
        return refuse("a range lies outside of its buffer");
    }
    std::vector<ckh_u64> edges;
    if (!sum_up(count, [&](std::size_t i) { return length.u64()[i]; }, edges)) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::copy_memory(address.u64(), length.u64(), target.u8(), start.u64(), edges.data(), count,
                     static_cast<std::size_t>(threads));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *digest_memory(PyObject *, PyObject *args) {
    Buffer address, length, out;
    Py_ssize_t chunk_bytes, variant, threads;
    if (!PyArg_ParseTuple(args, "O&O&nO&nn", Buffer::read, &address, Buffer::read, &length,
                          &chunk_bytes, Buffer::write, &out, &variant, &threads)) {
        return nullptr;
    }
    const std::size_t count = length.bytes() / 8;
    if (!is_chunk_size(chunk_bytes)) return refuse(kBadChunkSize);
    if (!is_variant(variant)) return refuse("no such variant");
    if (threads < 1) return refuse("threads must be at least 1");
    if (!length.holds_u64(count) || !address.holds_u64(count)) {
        return refuse("there is one address for each length");
    }
    const auto chunk = static_cast<std::size_t>(chunk_bytes);
    const auto chunks_of = [&](std::size_t i) {
        return chunk_count(static_cast<std::size_t>(length.u64()[i]), chunk);
    };
    std::vector<ckh_u64> edges;
    if (!sum_up(count, chunks_of, edges)) return PyErr_NoMemory();
    if (!out.holds_u64(2 * static_cast<std::size_t>(edges[count]))) {
        return refuse("out must hold one aligned digest for each chunk");
    }
    const ckh::ChunksFunction digest = variants()[static_cast<std::size_t>(variant)].digest_chunks;
    Py_BEGIN_ALLOW_THREADS;
    ckh::digest_memory(address.u64(), length.u64(), edges.data(), count, chunk, digest, out.u64(),
                       static_cast<std::size_t>(threads));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *scan_pieces(PyObject *, PyObject *args) {
    Buffer address, length, old, known, digests, kind, pattern;
    Py_ssize_t chunk_bytes, variant, threads;
    int given;
    if (!PyArg_ParseTuple(args, "O&O&nO&O&O&pO&O&nn", Buffer::read, &address, Buffer::read,
                          &length, &chunk_bytes, Buffer::read, &old, Buffer::read, &known,
                          Buffer::write, &digests, &given, Buffer::write, &kind, Buffer::write,
                          &pattern, &variant, &threads)) {
        return nullptr;
    }
    const std::size_t count = kind.bytes();
    if (!is_chunk_size(chunk_bytes)) return refuse(kBadChunkSize);
    if (!is_variant(variant)) return refuse("no such variant");
    if (threads < 1) return refuse("threads must be at least 1");
    if (!address.holds_u64(count) || !length.holds_u64(count) || !pattern.holds_u64(count) ||
        !old.holds_u64(2 * count) || !digests.holds_u64(2 * count) || known.bytes() != count) {
        return refuse("all columns have one entry for each piece");
    }
    for (std::size_t i = 0; i < count; i++) {
        if (length.u64()[i] > static_cast<ckh_u64>(chunk_bytes)) {
            return refuse("a piece is longer than one chunk");
        }
    }
    const ckh::Pieces work{address.u64(), length.u64(), count,
                                 static_cast<std::size_t>(chunk_bytes), old.u64(), known.u8(),
                                 given != 0,
                                 variants()[static_cast<std::size_t>(variant)].digest_chunks,
                                 digests.u64(), kind.u8(), pattern.u64()};
    std::size_t torn;
    Py_BEGIN_ALLOW_THREADS;
    torn = ckh::scan_all_pieces(work, static_cast<std::size_t>(threads));
    Py_END_ALLOW_THREADS;
    return PyLong_FromSize_t(torn);
}

// The other way: ranges of one buffer to wherever the addresses say.
PyObject *place_memory(PyObject *, PyObject *args) {
    Buffer source, start, address, length;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", Buffer::read, &source, Buffer::read, &start,
                          Buffer::read, &address, Buffer::read, &length)) {
        return nullptr;
    }
    const std::size_t count = length.bytes() / 8;
    if (!length.holds_u64(count) || !address.holds_u64(count) || !start.holds_u64(count) ||
        !ckh::ranges_fit(start.u64(), length.u64(), count, source.bytes())) {
        return refuse("a range lies outside of its buffer");
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::place_memory(source.u8(), start.u64(), address.u64(), length.u64(), count);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

// Through the buffer protocol without a format, which arrays of every element type have.
PyObject *look_at(PyObject *, PyObject *args) {
    PyObject *arrays;
    Buffer address;
    if (!PyArg_ParseTuple(args, "OO&", &arrays, Buffer::write, &address)) return nullptr;
    const Py_ssize_t count = PyList_Size(arrays);
    if (count < 0) return nullptr;
    if (!address.holds_u64(static_cast<std::size_t>(count))) {
        return refuse("there is one address for each array");
    }
    try {
        std::vector<Py_ssize_t> facts;
        facts.reserve(4 * static_cast<std::size_t>(count));
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_buffer view;
            if (PyObject_GetBuffer(PyList_GetItem(arrays, i), &view, PyBUF_STRIDES) != 0) {
                return nullptr;
            }
            address.i64()[i] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(view.buf));
            facts.push_back(view.ndim);
            facts.push_back(view.itemsize);
            if (view.ndim > 0) {
                facts.insert(facts.end(), view.shape, view.shape + view.ndim);
                facts.insert(facts.end(), view.strides, view.strides + view.ndim);
            }
            PyBuffer_Release(&view);
        }
        const auto bytes = static_cast<Py_ssize_t>(facts.size() * sizeof(Py_ssize_t));
        return PyBytes_FromStringAndSize(reinterpret_cast<const char *>(facts.data()), bytes);
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
}

PyMethodDef methods[] = {
    {"copy_memory", copy_memory, METH_VARARGS, "Copy many ranges of memory into one buffer."},
    {"digest_memory", digest_memory, METH_VARARGS, "Digest the chunks of many regions."},
    {"scan_pieces", scan_pieces, METH_VARARGS, "Digest and compare many pieces of one chunk each."},
    {"place_memory", place_memory, METH_VARARGS, "Copy ranges of one buffer to many places."},
    {"look_at", look_at, METH_VARARGS, "Where many arrays lie, and how."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_memory(PyObject *module) { return PyModule_AddFunctions(module, methods); }
