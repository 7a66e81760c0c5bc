// Many regions wherever they lie in memory, in one call: copy them, digest their chunks, compare
// and classify these.
//
// What lies at an address is for the caller to know. Nothing here allocates or touches Python.
#pragma once

#include "diff.hpp"
#include "shares.hpp"

#include <algorithm>
#include <atomic>

namespace ckh {

// The last range that begins at `position` or before it, of those that have anything.
static inline std::size_t range_at(const ckh_u64 *edges, std::size_t count, std::size_t position) {
    return static_cast<std::size_t>(std::upper_bound(edges, edges + count + 1, position) - edges) -
           1;
}

// Copies ranges of this process's memory to their places in `target`, inside of which they lie.
// `edges` has count + 1 numbers: how many bytes there are before each range, and in all. Threads
// take equal shares of the bytes, so that a large range is cut and small ones stay together.
static inline void copy_memory(const ckh_u64 *address, const ckh_u64 *length, ckh_u8 *target,
                               const ckh_u64 *start, const ckh_u64 *edges, std::size_t count,
                               std::size_t threads) {
    in_shares(static_cast<std::size_t>(edges[count]), threads, [=](std::size_t a, std::size_t b) {
        std::size_t i = range_at(edges, count, a);
        for (; i < count && edges[i] < b; i++) {
            const ckh_u64 skip = edges[i] < a ? a - edges[i] : 0;
            const ckh_u64 end = std::min<ckh_u64>(length[i], b - edges[i]);
            if (skip >= end) continue;
            const auto *source =
                reinterpret_cast<const ckh_u8 *>(static_cast<std::uintptr_t>(address[i]));
            std::memcpy(target + start[i] + skip, source + skip,
                        static_cast<std::size_t>(end - skip));
        }
    });
}

// The other way: ranges of `source` to their addresses.
static inline void place_memory(const ckh_u8 *source, const ckh_u64 *start, const ckh_u64 *address,
                                const ckh_u64 *length, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) {
        if (length[i] == 0) continue;
        auto *target = reinterpret_cast<ckh_u8 *>(static_cast<std::uintptr_t>(address[i]));
        std::memcpy(target, source + start[i], static_cast<std::size_t>(length[i]));
    }
}

// Digests all chunks of all regions; `edges` has how many chunks there are before each, and in all.
static inline void digest_memory(const ckh_u64 *address, const ckh_u64 *length,
                                 const ckh_u64 *edges, std::size_t count, std::size_t chunk_bytes,
                                 ChunksFunction digest, ckh_u64 *out, std::size_t threads) {
    in_shares(static_cast<std::size_t>(edges[count]), threads, [=](std::size_t a, std::size_t b) {
        std::size_t i = range_at(edges, count, a);
        for (; i < count && edges[i] < b; i++) {
            const std::size_t first = edges[i] < a ? a - static_cast<std::size_t>(edges[i]) : 0;
            const auto end = static_cast<std::size_t>(std::min<ckh_u64>(edges[i + 1], b) - edges[i]);
            if (first >= end) continue;
            const auto *bytes =
                reinterpret_cast<const ckh_u8 *>(static_cast<std::uintptr_t>(address[i]));
            const std::size_t start = first * chunk_bytes;
            const std::size_t stop = std::min<std::size_t>(end * chunk_bytes, length[i]);
            digest(bytes + start, stop - start, chunk_bytes, end - first,
                   out + 2 * (static_cast<std::size_t>(edges[i]) + first));
        }
    });
}

// Pieces of regions, each of one chunk at most.
struct Pieces {
    const ckh_u64 *address, *length;
    std::size_t count;
    std::size_t chunk_bytes;  // No piece is longer.
    const ckh_u64 *old;  // one digest each
    const ckh_u8 *known;  // whether there is an old one
    bool given;  // whether `digests` are those that the bytes should have
    ChunksFunction digest;
    ckh_u64 *digests;
    ckh_u8 *kind;  // out: 0 where the digest is the old one, else kData or kFill
    ckh_u64 *pattern;  // out: of fills, else 0
};

// Does regions first .. end; returns the first whose digest is not the given one, or end.
static inline std::size_t scan_pieces(const Pieces &work, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; i++) {
        const auto *bytes =
            reinterpret_cast<const ckh_u8 *>(static_cast<std::uintptr_t>(work.address[i]));
        const auto size = static_cast<std::size_t>(work.length[i]);
        ckh_u64 *mine = work.digests + 2 * i, found[2];
        if (!work.given) work.digest(bytes, size, work.chunk_bytes, 1, mine);
        work.kind[i] = 0;
        work.pattern[i] = 0;
        if (work.known[i] && std::memcmp(mine, work.old + 2 * i, 16) == 0) continue;
        if (work.given) {
            work.digest(bytes, size, work.chunk_bytes, 1, found);
            if (std::memcmp(mine, found, 16) != 0) return i;
        }
        const bool fill = is_fill(bytes, size);
        work.kind[i] = fill ? kFill : kData;
        if (fill) work.pattern[i] = load_pair(bytes);
    }
    return end;
}

// All of them, on several threads; returns the first one found torn, or how many there are.
static inline std::size_t scan_all_pieces(const Pieces &work, std::size_t threads) {
    std::atomic<std::size_t> torn{work.count};
    in_shares(work.count, threads, [&work, &torn](std::size_t first, std::size_t end) {
        const std::size_t stopped = scan_pieces(work, first, end);
        std::size_t before = torn.load();
        while (stopped < end && stopped < before && !torn.compare_exchange_weak(before, stopped)) {
        }
    });
    return torn.load();
}

}  // namespace ckh
