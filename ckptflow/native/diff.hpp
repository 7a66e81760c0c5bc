// What a diff is made of: regions and their digests, fills, runs, and the levels of a tree.
//
// ckptflow/data/scan.py and merkle.py say what these mean; the NumPy and numba versions beside
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

// Of each run: its kind, where it is, and the pattern of a fill or else its first number.
struct RunColumns {
    ckh_u8 *kind;
    ckh_u64 *start, *length, *ref;
};

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
