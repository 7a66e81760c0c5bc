// Filters of frames, as Python calls them.
#include "python.hpp"

#include "filters.hpp"

namespace {

using namespace core;

constexpr const char *kBadFilter = "no such filter, word or variant";

bool is_filter(Py_ssize_t filter, Py_ssize_t word, Py_ssize_t variant) {
    return filter >= ckh::kShuffle && filter <= ckh::kWords && word >= 1 &&
           static_cast<std::size_t>(word) <= ckh::kWordMax && is_variant(variant);
}

ckh::FilterSteps steps(Py_ssize_t variant) {
    return ckh::filter_steps(variants()[static_cast<std::size_t>(variant)].name);
}

bool overlap(const Buffer &a, const Buffer &b) {
    const auto start_a = reinterpret_cast<std::uintptr_t>(a.u8());
    const auto start_b = reinterpret_cast<std::uintptr_t>(b.u8());
    return start_a < start_b + b.bytes() && start_b < start_a + a.bytes();
}

PyObject *apply_filter(PyObject *, PyObject *args) {
    Buffer plain, out;
    Py_ssize_t filter, word, variant;
    if (!PyArg_ParseTuple(args, "nnO&O&n", &filter, &word, Buffer::read, &plain, Buffer::write,
                          &out, &variant)) {
        return nullptr;
    }
    if (!is_filter(filter, word, variant)) return refuse(kBadFilter);
    const auto code = static_cast<unsigned>(filter);
    const auto size = static_cast<std::size_t>(word);
    if (out.bytes() < ckh::filter_max_bytes(code, size, plain.bytes()) || overlap(plain, out)) {
        return refuse("out must have room for the longest result, apart from the plain bytes");
    }
    std::size_t written;
    Py_BEGIN_ALLOW_THREADS;
    written = steps(variant).apply(code, size, plain.u8(), plain.bytes(), out.u8());
    Py_END_ALLOW_THREADS;
    return PyLong_FromSize_t(written);
}

PyObject *undo_filter(PyObject *, PyObject *args) {
    Buffer stored, out;
    Py_ssize_t filter, word, variant;
    if (!PyArg_ParseTuple(args, "nnO&O&n", &filter, &word, Buffer::read, &stored, Buffer::write,
                          &out, &variant)) {
        return nullptr;
    }
    if (!is_filter(filter, word, variant)) return refuse(kBadFilter);
    if (overlap(stored, out)) return refuse("out must lie apart from the stored bytes");
    bool right;
    Py_BEGIN_ALLOW_THREADS;
    right = steps(variant).undo(static_cast<unsigned>(filter), static_cast<std::size_t>(word),
                                stored.u8(), stored.bytes(), out.u8(), out.bytes());
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(right);
}

PyMethodDef methods[] = {
    {"apply_filter", apply_filter, METH_VARARGS, "Filter a buffer; returns the bytes written."},
    {"undo_filter", undo_filter, METH_VARARGS, "Undo a filter; false if the bytes are damaged."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_filters(PyObject *module) { return PyModule_AddFunctions(module, methods); }
