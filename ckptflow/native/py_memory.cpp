// Live arrays, many at a time, as Python calls it: where they lie, and their bytes.
#include "python.hpp"

#include "ranges.hpp"

#include <new>
#include <vector>

namespace {

using namespace core;

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
    try {
        edges.resize(count + 1);
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
    for (std::size_t i = 0; i < count; i++) edges[i + 1] = edges[i] + length.u64()[i];
    Py_BEGIN_ALLOW_THREADS;
    ckh::copy_memory(address.u64(), length.u64(), target.u8(), start.u64(), edges.data(), count,
                     static_cast<std::size_t>(threads));
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
    {"look_at", look_at, METH_VARARGS, "Where many arrays lie, and how."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_memory(PyObject *module) { return PyModule_AddFunctions(module, methods); }
