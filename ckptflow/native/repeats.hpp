// Rows of an extent table that repeat the rows some way before them.
#pragma once

#include "ckh128.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ckh {

struct Rows {
    const ckh_u64 *length, *source;
    const ckh_u32 *pack;
    std::size_t count;

    bool same(std::size_t a, std::size_t b) const {
        return length[a] == length[b] && source[a] == source[b] && pack[a] == pack[b];
    }
    ckh_u64 hash(std::size_t i) const {
        ckh_u64 x = (length[i] * 0x9E3779B97F4A7C15ull ^ source[i]) * 0xC2B2AE3D27D4EB4Full;
        x = (x ^ x >> 29 ^ pack[i]) * 0xD6E8FEB86659FD93ull;
        return x ^ x >> 32;
    }
};

// For each row how far before it the last equal one is; 0 if there is none.
static inline std::vector<std::size_t> distances_to_last(Rows rows) {
    std::size_t size = 16;
    while (size < 2 * rows.count) size *= 2;
    std::vector<std::size_t> last(size, 0);  // Number + 1 of the last row with a value.
    std::vector<std::size_t> distance(rows.count, 0);
    for (std::size_t i = 0; i < rows.count; i++) {
        std::size_t slot = static_cast<std::size_t>(rows.hash(i)) & (size - 1);
        while (last[slot] != 0 && !rows.same(last[slot] - 1, i)) slot = (slot + 1) & (size - 1);
        if (last[slot] != 0) distance[i] = i - (last[slot] - 1);
        last[slot] = i + 1;
    }
    return distance;
}

struct RepeatColumns {
    std::int64_t *row, *period, *count;
};

// From left to right: where the rows from i on equal those `distance[i]` before them, as many as
// one period and at least three, they are one repeat. Columns have room for a third of the rows.
// Returns how many repeats there are. May throw std::bad_alloc.
static inline std::size_t find_repeats(Rows rows, RepeatColumns out) {
    const std::vector<std::size_t> distance = distances_to_last(rows);
    // Where rows stop to equal those a distance before, for distances that were tried in vain: no
    // row is compared twice over the same distance, however many too short repeats overlap.
    std::vector<std::size_t> stop(rows.count + 1, 0);
    std::size_t found = 0;
    for (std::size_t i = 0; i < rows.count;) {
        const std::size_t period = distance[i], least = period > 3 ? period : 3;
        if (period == 0 || i < stop[period]) {
            i++;
            continue;
        }
        std::size_t end = i + 1;
        while (end < rows.count && rows.same(end, end - period)) end++;
        if (end - i < least) {
            stop[period] = end;
            i++;
            continue;
        }
        out.row[found] = static_cast<std::int64_t>(i);
        out.period[found] = static_cast<std::int64_t>(period);
        out.count[found] = static_cast<std::int64_t>(end - i);
        found++;
        i = end;
    }
    return found;
}

}  // namespace ckh
