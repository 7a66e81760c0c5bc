// Work on many byte ranges, as Python calls it.
#include "python.hpp"

#include "ranges.hpp"

namespace {

using namespace core;

PyObject *copy_ranges(PyObject *, PyObject *args) {
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

PyObject *fill_ranges(PyObject *, PyObject *args) {
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
    {"copy_ranges", copy_ranges, METH_VARARGS, "Copy many ranges between two buffers."},
    {"fill_ranges", fill_ranges, METH_VARARGS, "Fill many ranges with their patterns."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_ranges(PyObject *module) { return PyModule_AddFunctions(module, methods); }
