// What every py_*.cpp needs to be called from Python: buffers, refusals, the parts of the module.
//
// Limited API, so that one build serves Python 3.11 and later. Every function takes buffers that
// ckptflow.data has made and checked (_core.pyi gives their shapes), works without the GIL, and
// writes into arrays it is given: fresh pages cost more than the work. What is checked on this
// side is what would otherwise read or write outside of a buffer.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ckh128_cpu.hpp"

#include <cstdint>

namespace core {

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
    ckh_u32 *u32() const { return static_cast<ckh_u32 *>(view_.buf); }
    ckh_u64 *u64() const { return static_cast<ckh_u64 *>(view_.buf); }
    std::int64_t *i64() const { return static_cast<std::int64_t *>(view_.buf); }
    bool holds_u32(std::size_t count) const { return bytes() == 4 * count && is_aligned(4); }
    bool holds_u64(std::size_t count) const { return bytes() == 8 * count && is_aligned(8); }
    bool holds_digests() const { return bytes() % 16 == 0 && is_aligned(8); }
    std::size_t digest_count() const { return bytes() / 16; }

  private:
    bool is_aligned(std::size_t unit) const {
        return reinterpret_cast<std::uintptr_t>(view_.buf) % unit == 0;
    }

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

inline PyObject *refuse(const char *message) {
    PyErr_SetString(PyExc_ValueError, message);
    return nullptr;
}

inline std::size_t chunk_count(std::size_t length, std::size_t chunk_bytes) {
    return length / chunk_bytes + (length % chunk_bytes != 0);
}

inline bool is_chunk_size(Py_ssize_t chunk_bytes) {
    return chunk_bytes >= 16 && chunk_bytes % 8 == 0;
}

constexpr const char *kBadChunkSize = "chunk_bytes must be a multiple of 8 from 16 on";

// The instruction sets this CPU can use, fastest first. Python names one by its place here.
const std::vector<ckh::Variant> &variants();

inline bool is_variant(Py_ssize_t variant) {
    return variant >= 0 && static_cast<std::size_t>(variant) < variants().size();
}

// Each adds the functions of one py_*.cpp to the module; -1 with an exception set if it cannot.
int add_digest(PyObject *module);
int add_diff(PyObject *module);
int add_ranges(PyObject *module);
int add_filters(PyObject *module);
int add_galois(PyObject *module);
int add_memory(PyObject *module);
int add_capture(PyObject *module);
int add_levels(PyObject *module);

}  // namespace core
