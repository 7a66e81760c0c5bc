// Arithmetic of redundancy, as Python calls it.
#include "python.hpp"

#include "galois.hpp"

namespace {

using namespace core;

PyObject *galois_add(PyObject *, PyObject *args) {
    Buffer source, target;
    Py_ssize_t factor, variant;
    if (!PyArg_ParseTuple(args, "nO&O&n", &factor, Buffer::read, &source, Buffer::write, &target,
                          &variant)) {
        return nullptr;
    }
    if (factor < 0 || factor > 255 || !is_variant(variant)) {
        return refuse("no such factor or variant");
    }
    if (source.bytes() > target.bytes()) return refuse("the target is shorter than the source");
    const char *name = variants()[static_cast<std::size_t>(variant)].name;
    Py_BEGIN_ALLOW_THREADS;
    ckh::galois_add(name, static_cast<ckh_u8>(factor), source.u8(), target.u8(), source.bytes());
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"galois_add", galois_add, METH_VARARGS, "target ^= factor * source over GF(2^8)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_galois(PyObject *module) { return PyModule_AddFunctions(module, methods); }
