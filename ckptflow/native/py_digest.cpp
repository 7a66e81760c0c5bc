// Digests of chunks and of tree levels, as Python calls them.
#include "python.hpp"

#include "diff.hpp"

namespace {

using namespace core;

ckh::Digests digests_in(const Buffer &buffer) { return {buffer.u64(), buffer.digest_count()}; }

PyObject *variant_names(PyObject *, PyObject *) {
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

PyObject *digest_chunks(PyObject *, PyObject *args) {
    Buffer data, out;
    Py_ssize_t chunk_bytes, variant, threads;
    if (!PyArg_ParseTuple(args, "O&nO&nn", Buffer::read, &data, &chunk_bytes, Buffer::write, &out,
                          &variant, &threads)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes)) return refuse(kBadChunkSize);
    if (!is_variant(variant)) return refuse("no such variant");
    if (threads < 1) return refuse("threads must be at least 1");
    const auto chunk = static_cast<std::size_t>(chunk_bytes);
    const std::size_t count = out.digest_count();
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

PyObject *digest_parents(PyObject *, PyObject *args) {
    Buffer children, old_children, old_parents, out;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", Buffer::read, &children, Buffer::read, &old_children,
                          Buffer::read, &old_parents, Buffer::write, &out)) {
        return nullptr;
    }
    const auto level_above = [](const Buffer &level) { return (level.digest_count() + 1) / 2; };
    if (!children.holds_digests() || !old_children.holds_digests() ||
        !old_parents.holds_u64(2 * level_above(old_children)) ||
        !out.holds_u64(2 * level_above(children))) {
        return refuse("a level above has half as many aligned digests, rounded up");
    }
    Py_BEGIN_ALLOW_THREADS;
    ckh::digest_parents(digests_in(children), digests_in(old_children), digests_in(old_parents),
                        out.u64());
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"variants", variant_names, METH_NOARGS, "Instruction sets this CPU can use, fastest first."},
    {"digest_chunks", digest_chunks, METH_VARARGS, "Digest every chunk of a buffer."},
    {"digest_parents", digest_parents, METH_VARARGS, "Digest one level of a Merkle tree."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const std::vector<ckh::Variant> &core::variants() {
    static const std::vector<ckh::Variant> found = ckh::variants();
    return found;
}

int core::add_digest(PyObject *module) { return PyModule_AddFunctions(module, methods); }
