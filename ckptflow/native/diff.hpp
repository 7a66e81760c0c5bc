// What changed: chunks against their parent's digests, runs of equal chunks, tree levels.
//
// ckptflow/data/diff.py and merkle.py say what these mean; the NumPy and numba versions beside
// them return the same bits. No function here allocates, throws or touches Python.
#pragma once

#include "ckh128_cpu.hpp"

namespace ckh {

enum Kind : ckh_u8 { kSame = 0, kData = 1, kFill = 2, kKnown = 3 };

// A region cut into chunks; the last may be shorter.
struct Region {
    const ckh_u8 *bytes;
    std::size_t length;
    std::size_t chunk_bytes;

    std::size_t chunk_length(std::size_t i) const {
        const std::size_t rest = length - i * chunk_bytes;
        return rest < chunk_bytes ? rest : chunk_bytes;
    }
};

// Digests as Python holds them: lo and hi in turn.
struct Digests {
    const ckh_u64 *halves;
    std::size_t count;

    bool same(std::size_t i, Digests other) const {
        return halves[2 * i] == other.halves[2 * i] &&
               halves[2 * i + 1] == other.halves[2 * i + 1];
    }
    ckh128_t at(std::size_t i) const { return {halves[2 * i], halves[2 * i + 1]}; }
};

// Whether the bytes repeat with period 8: each equals the one 8 bytes before. Real data fails
// on the first two pairs, which are compared without a call.
static inline bool is_fill(const ckh_u8 *bytes, std::size_t length) {
    if (length % 8 != 0) return false;
    if (length <= 8) return true;
    return load_pair(bytes) == load_pair(bytes + 8) &&
           std::memcmp(bytes, bytes + 8, length - 8) == 0;
}

// Fills `kinds` and returns into how many runs collect_runs() will put them.
static inline std::size_t classify_chunks(Region region, Digests digests, Digests parent,
                                          ckh_u8 *kinds) {
    std::size_t runs = 0;
    ckh_u64 last_pattern = 0;
    for (std::size_t i = 0; i < digests.count; i++) {
        const ckh_u8 *chunk = region.bytes + i * region.chunk_bytes;
        ckh_u8 kind = kData;
        ckh_u64 pattern = 0;
        if (i < parent.count && digests.same(i, parent)) {
            kind = kSame;
        } else if (is_fill(chunk, region.chunk_length(i))) {
            kind = kFill;
            pattern = load_pair(chunk);
        }
        kinds[i] = kind;
        runs += i == 0 || kind != kinds[i - 1] || pattern != last_pattern;
        last_pattern = pattern;
    }
    return runs;
}

struct RunColumns {
    ckh_u8 *kind;
    ckh_u64 *start, *length, *pattern;
};

// Joins neighbours of one kind and, for fills, one pattern. Chunks are multiples of 8 bytes, so
// a pattern goes on in phase from one chunk to the next. Returns false if there are not exactly
// `runs` of them, as when somebody wrote to the region since they were counted.
static inline bool collect_runs(Region region, const ckh_u8 *kinds, std::size_t runs,
                                RunColumns out) {
    std::size_t run = 0;
    for (std::size_t i = 0, start = 0; start < region.length; i++, start += region.chunk_bytes) {
        const ckh_u64 pattern = kinds[i] == kFill ? load_pair(region.bytes + start) : 0;
        if (i == 0 || kinds[i] != kinds[i - 1] || pattern != out.pattern[run - 1]) {
            if (run == runs) return false;
            out.kind[run] = kinds[i];
            out.start[run] = start;
            out.length[run] = 0;
            out.pattern[run] = pattern;
            run++;
        }
        out.length[run - 1] += region.chunk_length(i);
    }
    return run == runs;
}

// One level of a tree from the level below; an odd last node goes up unchanged. Where both
// children are as in the older tree the older parent is taken: reading it is cheaper.
static inline void digest_parents(Digests children, Digests old_children, Digests old_parents,
                                  ckh_u64 *out) {
    for (std::size_t i = 0; i < (children.count + 1) / 2; i++) {
        const std::size_t left = 2 * i, right = 2 * i + 1;
        ckh128_t parent;
        if (right == children.count) {
            parent = children.at(left);
        } else if (right < old_children.count && children.same(left, old_children) &&
                   children.same(right, old_children)) {
            parent = old_parents.at(i);
        } else {
            parent = ckh_node(children.at(left), children.at(right));
        }
        out[2 * i] = parent.lo;
        out[2 * i + 1] = parent.hi;
    }
}

}  // namespace ckh
