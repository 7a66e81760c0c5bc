// Filters of frames, as Python calls them.
#include "python.hpp"

namespace {

using namespace core;

PyMethodDef methods[] = {
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_filters(PyObject *module) { return PyModule_AddFunctions(module, methods); }
