// The capture of a state: digest its regions where they lie, and copy what changed into an arena.
//
// ckptflow/data/snapshot.py says what the result means. A grain that changed is copied while it
// is still in the cache, so that a state of which little changed costs one read. One call does
// all regions, on a few threads, so that many tiny ones cost no more than their bytes.
#pragma once

#include "diff.hpp"
#include "shares.hpp"

#include <algorithm>
#include <atomic>

namespace ckh {

constexpr std::size_t kCaptureColumns = 7;
constexpr std::size_t kCaptureGroupBytes = 32 << 10;  // Digested, then copied from the cache.
constexpr std::size_t kCaptureUnitBytes = 256 << 10;  // Of work that a thread takes at a time,
constexpr std::size_t kCopyUnitBytes = 4 << 20;  // and of plain copies: these may bypass caches.
constexpr std::size_t kUnitsTogether = 16;

enum CaptureFlag : ckh_u64 { kCaptureWhole = 1, kCaptureDigest = 2, kCaptureCompare = 4 };

// One region, as Python lists it: kCaptureColumns words.
struct CaptureRow {
    const ckh_u8 *source;
    std::size_t bytes;
    std::size_t offset;  // in the arena
    std::size_t first;  // number of its first chunk in the table of digests
    std::size_t known;  // so many of its chunks have a digest in `parent`
    std::size_t grain;  // chunks that are held together
    ckh_u64 flags;

    static CaptureRow at(const ckh_u64 *rows, std::size_t i) {
        const ckh_u64 *row = rows + i * kCaptureColumns;
        return {reinterpret_cast<const ckh_u8 *>(static_cast<std::uintptr_t>(row[0])),
                static_cast<std::size_t>(row[1]), static_cast<std::size_t>(row[2]),
                static_cast<std::size_t>(row[3]), static_cast<std::size_t>(row[4]),
                static_cast<std::size_t>(row[5]), row[6]};
    }
    std::size_t chunks(std::size_t chunk_bytes) const {
        return bytes / chunk_bytes + (bytes % chunk_bytes != 0);
    }
    // Chunks that a thread takes at a time, whole grains.
    std::size_t unit(std::size_t chunk_bytes) const {
        const std::size_t size = flags & kCaptureDigest ? kCaptureUnitBytes : kCopyUnitBytes;
        return std::max<std::size_t>(1, size / chunk_bytes / grain) * grain;
    }
};

struct Capture {
    const ckh_u64 *rows;
    std::size_t count;
    std::size_t chunk_bytes;
    ckh_u8 *arena;
    const ckh_u64 *parent;  // digests, two words each, in the places of `digests`
    ckh_u64 *digests;  // out
    ckh_u8 *held;  // out: 1 for each chunk that is in the arena now
    ckh_u64 limit;  // of bytes held
    ChunksFunction digest;
    const std::size_t *units;  // count + 1: how many units the rows before each have

    std::atomic<ckh_u64> taken{0};
    std::atomic<std::size_t> next{0};
    std::atomic<bool> full{false};

    bool take(std::size_t bytes) {
        if (taken.fetch_add(bytes) + bytes <= limit) return true;
        full = true;
        return false;
    }
};

static inline bool capture_changed(const Capture &work, const CaptureRow &row, std::size_t chunk) {
    if (chunk >= row.known) return true;
    const std::size_t i = 2 * (row.first + chunk);
    return work.parent[i] != work.digests[i] || work.parent[i + 1] != work.digests[i + 1];
}

// Copies chunks first .. end into the arena; false if there is no room for them.
static inline bool capture_hold(Capture &work, const CaptureRow &row, std::size_t first,
                                std::size_t end) {
    const std::size_t start = first * work.chunk_bytes;
    const std::size_t size = std::min(end * work.chunk_bytes, row.bytes) - start;
    if (!work.take(size)) return false;
    std::memcpy(work.arena + row.offset + start, row.source + start, size);
    std::memset(work.held + row.first + first, 1, end - first);
    return true;
}

// Digests chunks first .. end, which begin and end with grains or with the region, and copies the
// grains of which a chunk changed.
static inline bool capture_group(Capture &work, const CaptureRow &row, std::size_t first,
                                 std::size_t end) {
    const std::size_t start = first * work.chunk_bytes;
    work.digest(row.source + start, std::min(end * work.chunk_bytes, row.bytes) - start,
                work.chunk_bytes, end - first, work.digests + 2 * (row.first + first));
    ckh_u8 *held = work.held + row.first;
    std::size_t pending = first;  // Where what is to be copied begins.
    for (std::size_t grain = first; grain < end; grain += row.grain) {
        const std::size_t stop = std::min(grain + row.grain, end);
        bool changed = (row.flags & kCaptureWhole) != 0;
        for (std::size_t i = grain; i < stop && !changed; i++) {
            changed = capture_changed(work, row, i);
        }
        if (row.flags & kCaptureCompare) {
            std::memset(held + grain, changed, stop - grain);
            pending = stop;
        } else if (!changed) {
            if (pending < grain && !capture_hold(work, row, pending, grain)) return false;
            std::memset(held + grain, 0, stop - grain);
            pending = stop;
        }
    }
    return pending >= end || capture_hold(work, row, pending, end);
}

static inline bool capture_unit(Capture &work, const CaptureRow &row, std::size_t first,
                                std::size_t end) {
    if (!(row.flags & kCaptureDigest)) return capture_hold(work, row, first, end);
    const std::size_t group =
        std::max<std::size_t>(1, kCaptureGroupBytes / work.chunk_bytes / row.grain) * row.grain;
    for (; first < end; first += group) {
        if (!capture_group(work, row, first, std::min(first + group, end))) return false;
    }
    return true;
}

// What one thread does: takes units as long as there are any.
static inline void capture_some(Capture &work) {
    const std::size_t all = work.units[work.count];
    while (!work.full) {
        std::size_t unit = work.next.fetch_add(kUnitsTogether);
        if (unit >= all) return;
        const std::size_t stop = std::min(unit + kUnitsTogether, all);
        // The last row that begins at or before the unit, and has any.
        std::size_t at = static_cast<std::size_t>(
            std::upper_bound(work.units, work.units + work.count + 1, unit) - work.units - 1);
        for (; unit < stop; at++) {
            const CaptureRow row = CaptureRow::at(work.rows, at);
            const std::size_t chunks = row.chunks(work.chunk_bytes);
            const std::size_t step = row.unit(work.chunk_bytes);
            for (; unit < std::min(stop, work.units[at + 1]); unit++) {
                const std::size_t first = (unit - work.units[at]) * step;
                if (!capture_unit(work, row, first, std::min(first + step, chunks))) return;
            }
        }
    }
}

static inline void capture_regions(Capture &work, std::size_t threads) {
    in_shares(threads, threads,
              [&work](std::size_t, std::size_t) { capture_some(work); });
}

}  // namespace ckh
