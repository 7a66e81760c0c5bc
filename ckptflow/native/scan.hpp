// One pass over a region: digest each chunk, compare, and look into the cells of changed ones
// while they are still in the cache.
//
// ckptflow/data/scan.py says what the result means. Nothing here allocates, throws or touches
// Python; all output goes to columns with room for every cell.
#pragma once

#include "ckh128_cpu.hpp"
#include "diff.hpp"

#include <algorithm>
#include <atomic>

namespace ckh {

constexpr std::size_t kScanThreadsMax = 64;
constexpr std::size_t kGroupBytes = 32 << 10;  // Chunks are digested in groups that stay cached.

// Of each changed cell: its number, digest (lo, hi), kind (kData or kFill) and pattern.
struct CellColumns {
    ckh_u64 *index, *digest;
    ckh_u8 *kind;
    ckh_u64 *pattern;

    CellColumns from(std::size_t row) const {
        return {index + row, digest + 2 * row, kind + row, pattern + row};
    }
    void move_rows(std::size_t from, std::size_t to, std::size_t count) const {
        std::memmove(index + to, index + from, count * sizeof *index);
        std::memmove(digest + 2 * to, digest + 2 * from, count * 2 * sizeof *digest);
        std::memmove(kind + to, kind + from, count * sizeof *kind);
        std::memmove(pattern + to, pattern + from, count * sizeof *pattern);
    }
};

struct Scan {
    Region region;  // cut into chunks
    std::size_t cell_bytes;  // divides the size of a chunk
    Digests old_chunks, old_cells;  // either may be shorter than the region, or empty
    ChunksFunction digest;
    ckh_u64 *chunks;  // out: one digest for each chunk; in, if `given`
    CellColumns cells;
    bool given;  // Then bytes of chunks that are as before are not read.
    std::atomic<std::size_t> *torn;  // out, if `given`: the first chunk with another digest

    std::size_t cells_per_chunk() const { return region.chunk_bytes / cell_bytes; }
    std::size_t chunk_count() const {
        return region.length / region.chunk_bytes + (region.length % region.chunk_bytes != 0);
    }
};

// Digests of the `count` cells of one chunk. Where the chunk is one fill, so are its cells, and
// all whole ones have one digest.
static inline void digest_cells(const Scan &scan, std::size_t chunk, std::size_t count,
                                bool is_one_fill, ckh_u64 *out) {
    const ckh_u8 *bytes = scan.region.bytes + chunk * scan.region.chunk_bytes;
    const std::size_t length = scan.region.chunk_length(chunk);
    if (count == 1 && scan.cells_per_chunk() == 1) {
        std::memcpy(out, scan.chunks + 2 * chunk, 16);
    } else if (is_one_fill && count > 2) {
        scan.digest(bytes, scan.cell_bytes, scan.cell_bytes, 1, out);
        for (std::size_t i = 1; i + 1 < count; i++) std::memcpy(out + 2 * i, out, 16);
        const std::size_t start = (count - 1) * scan.cell_bytes;
        scan.digest(bytes + start, length - start, scan.cell_bytes, 1, out + 2 * (count - 1));
    } else {
        scan.digest(bytes, length, scan.cell_bytes, count, out);
    }
}

// Appends the changed cells of one changed chunk to `found` rows of `out`; returns how many rows
// there are then.
static inline std::size_t scan_cells(const Scan &scan, std::size_t chunk, CellColumns out,
                                     std::size_t found) {
    const std::size_t length = scan.region.chunk_length(chunk);
    const std::size_t count = (length + scan.cell_bytes - 1) / scan.cell_bytes;
    const ckh_u8 *bytes = scan.region.bytes + chunk * scan.region.chunk_bytes;
    const bool is_one_fill = is_fill(bytes, length);
    // The digests go where they would stay if all cells had changed, and move up if not. There is
    // room: no more rows were found than there were cells before this chunk.
    const ckh_u64 *digests = out.digest + 2 * found;
    digest_cells(scan, chunk, count, is_one_fill, out.digest + 2 * found);
    const std::size_t first = chunk * scan.cells_per_chunk();
    for (std::size_t i = 0; i < count; i++) {
        const std::size_t cell = first + i;
        const ckh_u64 lo = digests[2 * i], hi = digests[2 * i + 1];
        if (cell < scan.old_cells.count && scan.old_cells.halves[2 * cell] == lo &&
            scan.old_cells.halves[2 * cell + 1] == hi) {
            continue;
        }
        const ckh_u8 *start = bytes + i * scan.cell_bytes;
        const std::size_t size = std::min(scan.cell_bytes, length - i * scan.cell_bytes);
        const bool fill = is_one_fill || is_fill(start, size);
        out.index[found] = cell;
        out.digest[2 * found] = lo;
        out.digest[2 * found + 1] = hi;
        out.kind[found] = fill ? kFill : kData;
        out.pattern[found] = fill ? load_pair(start) : 0;
        found++;
    }
    return found;
}

// Whether a chunk still has the digest it was given; notes the first one that has not.
static inline bool is_as_given(const Scan &scan, std::size_t chunk) {
    ckh_u64 found[2];
    scan.digest(scan.region.bytes + chunk * scan.region.chunk_bytes,
                scan.region.chunk_length(chunk), scan.region.chunk_bytes, 1, found);
    if (found[0] == scan.chunks[2 * chunk] && found[1] == scan.chunks[2 * chunk + 1]) return true;
    std::size_t first = scan.torn->load();
    while (chunk < first && !scan.torn->compare_exchange_weak(first, chunk)) {
    }
    return false;
}

// Scans the chunks first .. end; rows go to the place of the first of their cells on. Returns
// how many there are.
static inline std::size_t scan_chunks(const Scan &scan, std::size_t first, std::size_t end) {
    const CellColumns out = scan.cells.from(first * scan.cells_per_chunk());
    const Digests chunks{scan.chunks, end};
    const std::size_t chunk_bytes = scan.region.chunk_bytes;
    const std::size_t group = std::max<std::size_t>(1, kGroupBytes / chunk_bytes);
    std::size_t found = 0;
    for (; first < end; first += group) {
        const std::size_t stop = std::min(first + group, end);
        const std::size_t start = first * chunk_bytes;
        if (!scan.given) {
            scan.digest(scan.region.bytes + start,
                        std::min(stop * chunk_bytes, scan.region.length) - start, chunk_bytes,
                        stop - first, scan.chunks + 2 * first);
        }
        for (std::size_t i = first; i < stop; i++) {
            if (i < scan.old_chunks.count && chunks.same(i, scan.old_chunks)) continue;
            if (scan.given && !is_as_given(scan, i)) return found;
            found = scan_cells(scan, i, out, found);
        }
    }
    return found;
}

// The whole region, on several threads: each fills the rows of its own chunks, and the rows are
// then moved together. Returns how many there are.
static inline std::size_t scan_region(const Scan &scan, std::size_t threads) {
    std::size_t found[kScanThreadsMax] = {};
    threads = std::min(threads, kScanThreadsMax);
    const std::size_t count = scan.chunk_count();
    const std::size_t share = share_of(count, threads);
    if (count == 0) return 0;
    in_shares(count, threads, [&scan, &found, share](std::size_t first, std::size_t end) {
        found[first / share] = scan_chunks(scan, first, end);
    });
    std::size_t rows = found[0];
    for (std::size_t i = 1; i < threads; i++) {
        scan.cells.move_rows(i * share * scan.cells_per_chunk(), rows, found[i]);
        rows += found[i];
    }
    return rows;
}

}  // namespace ckh
