// Work on many byte ranges, as Python calls it.
#include "python.hpp"

#include "delta.hpp"
#include "ranges.hpp"

namespace {

using namespace core;

constexpr const char *kBadDelta =
    "a delta is made by 0 (xor) or 1 (subtract), on 1, 2, 4 or 8 bytes";

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

PyObject *repeat_ranges(PyObject *, PyObject *args) {
    Buffer target, start, period, length;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", Buffer::write, &target, Buffer::read, &start,
                          Buffer::read, &period, Buffer::read, &length)) {
        return nullptr;
    }
    const std::size_t count = length.bytes() / 8;
    if (!length.holds_u64(count) || !start.holds_u64(count) || !period.holds_u64(count) ||
        !ckh::ranges_fit(start.u64(), length.u64(), count, target.bytes())) {
        return refuse("a range lies outside of its buffer");
    }
    for (std::size_t i = 0; i < count; i++) {
        if (period.u64()[i] == 0) return refuse("a period has at least one byte");
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::repeat_ranges(target.u8(), start.u64(), period.u64(), length.u64(), count);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *ranges_equal(PyObject *, PyObject *args) {
    Buffer a, b, start_a, start_b, length, out;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&O&", Buffer::read, &a, Buffer::read, &b, Buffer::read,
                          &start_a, Buffer::read, &start_b, Buffer::read, &length, Buffer::write,
                          &out)) {
        return nullptr;
    }
    const std::size_t count = out.bytes();
    if (!length.holds_u64(count) || !start_a.holds_u64(count) || !start_b.holds_u64(count) ||
        !ckh::ranges_fit(start_a.u64(), length.u64(), count, a.bytes()) ||
        !ckh::ranges_fit(start_b.u64(), length.u64(), count, b.bytes())) {
        return refuse("a range lies outside of its buffer");
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::compare_ranges(a.u8(), b.u8(), start_a.u64(), start_b.u64(), length.u64(), count,
                        out.u8());
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *make_delta(PyObject *, PyObject *args) {
    Buffer fresh, old, out;
    long op, word_bytes;
    if (!PyArg_ParseTuple(args, "O&O&O&ll", Buffer::read, &fresh, Buffer::read, &old,
                          Buffer::write, &out, &op, &word_bytes)) {
        return nullptr;
    }
    const ckh::DeltaFunction make = ckh::delta_maker(op, word_bytes);
    if (make == nullptr) return refuse(kBadDelta);
    if (old.bytes() != fresh.bytes() || out.bytes() != fresh.bytes()) {
        return refuse("all buffers of a delta have one length");
    }
    Py_BEGIN_ALLOW_THREADS;
    make(fresh.u8(), old.u8(), out.u8(), out.bytes());
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *apply_delta(PyObject *, PyObject *args) {
    Buffer target, start, delta, delta_start, length;
    long op, word_bytes;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&ll", Buffer::write, &target, Buffer::read, &start,
                          Buffer::read, &delta, Buffer::read, &delta_start, Buffer::read, &length,
                          &op, &word_bytes)) {
        return nullptr;
    }
    const ckh::DeltaFunction apply = ckh::delta_applier(op, word_bytes);
    if (apply == nullptr) return refuse(kBadDelta);
    const std::size_t count = length.bytes() / 8;
    if (!length.holds_u64(count) || !start.holds_u64(count) || !delta_start.holds_u64(count) ||
        !ckh::ranges_fit(start.u64(), length.u64(), count, target.bytes()) ||
        !ckh::ranges_fit(delta_start.u64(), length.u64(), count, delta.bytes())) {
        return refuse("a range lies outside of its buffer");
    }
    Py_BEGIN_ALLOW_THREADS;
    for (std::size_t i = 0; i < count; i++) {
        ckh_u8 *range = target.u8() + start.u64()[i];
        apply(range, delta.u8() + delta_start.u64()[i], range,
              static_cast<std::size_t>(length.u64()[i]));
    }
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"copy_ranges", copy_ranges, METH_VARARGS, "Copy many ranges between two buffers."},
    {"fill_ranges", fill_ranges, METH_VARARGS, "Fill many ranges with their patterns."},
    {"repeat_ranges", repeat_ranges, METH_VARARGS, "Repeat the start of many ranges over them."},
    {"ranges_equal", ranges_equal, METH_VARARGS, "Compare many ranges of two buffers."},
    {"make_delta", make_delta, METH_VARARGS, "Subtract old bytes from new ones, word by word."},
    {"apply_delta", apply_delta, METH_VARARGS, "Add differences to many ranges, word by word."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_ranges(PyObject *module) { return PyModule_AddFunctions(module, methods); }
