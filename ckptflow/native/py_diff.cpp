// What changed in a region, as Python calls it.
#include "python.hpp"

#include "diff.hpp"
#include "history.hpp"
#include "repeats.hpp"
#include "scan.hpp"

namespace {

using namespace core;

ckh::Digests digests_in(const Buffer &buffer) { return {buffer.u64(), buffer.digest_count()}; }

PyObject *scan(PyObject *, PyObject *args) {
    Buffer data, old_chunks, old_cells, chunks, index, digest, kind, pattern;
    Py_ssize_t chunk_bytes, cell_bytes, variant, threads;
    int given;
    if (!PyArg_ParseTuple(args, "O&nnO&O&O&O&O&O&O&pnn", Buffer::read, &data, &chunk_bytes,
                          &cell_bytes, Buffer::read, &old_chunks, Buffer::read, &old_cells,
                          Buffer::write, &chunks, Buffer::write, &index, Buffer::write, &digest,
                          Buffer::write, &kind, Buffer::write, &pattern, &given, &variant,
                          &threads)) {
        return nullptr;
    }
    if (!is_chunk_size(chunk_bytes) || !is_chunk_size(cell_bytes) ||
        chunk_bytes % cell_bytes != 0) {
        return refuse("both are multiples of 8 bytes from 16 on, and cells divide chunks");
    }
    if (!is_variant(variant)) return refuse("no such variant");
    if (threads < 1) return refuse("threads must be at least 1");
    const auto chunk = static_cast<std::size_t>(chunk_bytes);
    const auto cell = static_cast<std::size_t>(cell_bytes);
    const std::size_t rows = kind.bytes();
    if (!chunks.holds_u64(2 * chunk_count(data.bytes(), chunk)) || !old_chunks.holds_digests() ||
        !old_cells.holds_digests()) {
        return refuse("chunks must hold one aligned digest for each chunk");
    }
    if (rows < chunk_count(data.bytes(), cell) || !index.holds_u64(rows) ||
        !digest.holds_u64(2 * rows) || !pattern.holds_u64(rows)) {
        return refuse("the columns must have room for every cell");
    }
    const std::size_t none = static_cast<std::size_t>(-1);
    std::atomic<std::size_t> torn{none};
    const ckh::Scan work{{data.u8(), data.bytes(), chunk},
                         cell,
                         digests_in(old_chunks),
                         digests_in(old_cells),
                         variants()[static_cast<std::size_t>(variant)].digest_chunks,
                         chunks.u64(),
                         {index.u64(), digest.u64(), kind.u8(), pattern.u64()},
                         given != 0,
                         &torn};
    std::size_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = ckh::scan_region(work, static_cast<std::size_t>(threads));
    Py_END_ALLOW_THREADS;
    if (torn != none) return PyLong_FromSsize_t(-1 - static_cast<Py_ssize_t>(torn.load()));
    return PyLong_FromSize_t(found);
}

bool is_table(const Buffer &slots) {
    const std::size_t size = slots.bytes() / 8;
    return size >= 16 && (size & (size - 1)) == 0 && slots.holds_u64(size);
}

PyObject *find_or_add(PyObject *, PyObject *args) {
    Buffer digests, kinds, ids, log_rows, slots;
    Py_ssize_t count;
    unsigned long long first_id;
    if (!PyArg_ParseTuple(args, "O&O&O&O&nO&K", Buffer::read, &digests, Buffer::write, &kinds,
                          Buffer::write, &ids, Buffer::write, &log_rows, &count, Buffer::write,
                          &slots, &first_id)) {
        return nullptr;
    }
    const std::size_t cells = kinds.bytes();
    if (!digests.holds_u64(2 * cells) || !ids.holds_u64(cells)) {
        return refuse("digests, kinds and ids must have one entry for each cell");
    }
    if (!log_rows.holds_digests() || count < 0 || !is_table(slots)) {
        return refuse("the log holds aligned digests, and slots are a power of two");
    }
    ckh::Log log{log_rows.u64(), static_cast<std::size_t>(count)};
    std::size_t added = 0;
    for (std::size_t i = 0; i < cells; i++) added += kinds.u8()[i] == ckh::kData;
    const std::size_t room = std::min(log_rows.digest_count(), ckh::kLogRowsMax);
    if (log.count > room || added > room - log.count) return refuse("the log has no room for all");
    std::size_t done;
    Py_BEGIN_ALLOW_THREADS;
    done = ckh::find_or_add({digests.u64(), cells}, kinds.u8(), ids.u64(), log,
                            {slots.u64(), slots.bytes() / 8}, first_id);
    Py_END_ALLOW_THREADS;
    return Py_BuildValue("nn", static_cast<Py_ssize_t>(done), static_cast<Py_ssize_t>(log.count));
}

PyObject *fill_table(PyObject *, PyObject *args) {
    Buffer log, slots;
    if (!PyArg_ParseTuple(args, "O&O&", Buffer::read, &log, Buffer::write, &slots)) return nullptr;
    if (!log.holds_digests() || !is_table(slots)) {
        return refuse("the log holds aligned digests, and slots are a power of two");
    }
    ckh::Table table(slots.u64(), slots.bytes() / 8);
    if (log.digest_count() > ckh::kLogRowsMax || table.is_full(log.digest_count())) {
        return refuse("the table is too small for the log");
    }
    Py_BEGIN_ALLOW_THREADS;
    table.fill(digests_in(log));
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *collect_runs(PyObject *, PyObject *args) {
    Buffer index, kinds, pattern, ids, kind, start, length, ref;
    unsigned long long cell_bytes, size_bytes;
    if (!PyArg_ParseTuple(args, "O&O&O&O&KKO&O&O&O&", Buffer::read, &index, Buffer::read, &kinds,
                          Buffer::read, &pattern, Buffer::read, &ids, &cell_bytes, &size_bytes,
                          Buffer::write, &kind, Buffer::write, &start, Buffer::write, &length,
                          Buffer::write, &ref)) {
        return nullptr;
    }
    const std::size_t count = kinds.bytes();
    if (!index.holds_u64(count) || !pattern.holds_u64(count) || !ids.holds_u64(count) ||
        kind.bytes() != count || !start.holds_u64(count) || !length.holds_u64(count) ||
        !ref.holds_u64(count)) {
        return refuse("every column must have one aligned entry for each cell");
    }
    std::size_t runs;
    Py_BEGIN_ALLOW_THREADS;
    runs = ckh::collect_runs({index.u64(), kinds.u8(), pattern.u64(), ids.u64(), count},
                             cell_bytes, size_bytes,
                             {kind.u8(), start.u64(), length.u64(), ref.u64()});
    Py_END_ALLOW_THREADS;
    return PyLong_FromSize_t(runs);
}

PyObject *find_repeats(PyObject *, PyObject *args) {
    Buffer length, source, pack, row, period, count;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&O&", Buffer::read, &length, Buffer::read, &source,
                          Buffer::read, &pack, Buffer::write, &row, Buffer::write, &period,
                          Buffer::write, &count)) {
        return nullptr;
    }
    const std::size_t rows = length.bytes() / 8, room = row.bytes() / 8;
    if (!length.holds_u64(rows) || !source.holds_u64(rows) || !pack.holds_u32(rows) ||
        !row.holds_u64(room) || !period.holds_u64(room) || !count.holds_u64(room) ||
        room < rows / 3) {
        return refuse("the columns must have one entry for each row, the repeats room for a third");
    }
    std::size_t found = 0;
    bool has_memory = true;
    Py_BEGIN_ALLOW_THREADS;
    try {
        found = ckh::find_repeats({length.u64(), source.u64(), pack.u32(), rows},
                                  {row.i64(), period.i64(), count.i64()});
    } catch (const std::bad_alloc &) {
        has_memory = false;
    }
    Py_END_ALLOW_THREADS;
    return has_memory ? PyLong_FromSize_t(found) : PyErr_NoMemory();
}

PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, "Digest a region and list its changed cells."},
    {"find_or_add", find_or_add, METH_VARARGS, "Number digests in the order they were first seen."},
    {"fill_table", fill_table, METH_VARARGS, "Enter all digests of a log into an empty table."},
    {"collect_runs", collect_runs, METH_VARARGS, "Join changed cells to runs."},
    {"find_repeats", find_repeats, METH_VARARGS, "Find rows that repeat rows before them."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_diff(PyObject *module) { return PyModule_AddFunctions(module, methods); }
