// ckptflow.native._core: the native functions as Python sees them, one py_*.cpp for each part.
#include "python.hpp"

namespace {

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(core::add_digest)},
    {Py_mod_exec, reinterpret_cast<void *>(core::add_diff)},
    {Py_mod_exec, reinterpret_cast<void *>(core::add_ranges)},
    {Py_mod_exec, reinterpret_cast<void *>(core::add_filters)},
    {Py_mod_exec, reinterpret_cast<void *>(core::add_galois)},
    {Py_mod_exec, reinterpret_cast<void *>(core::add_memory)},
    {Py_mod_exec, reinterpret_cast<void *>(core::add_capture)},
    {Py_mod_exec, reinterpret_cast<void *>(core::add_levels)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", "Native digests, diff, capture, filters, range copies and parity of ckptflow.",
    0, nullptr, slots, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
