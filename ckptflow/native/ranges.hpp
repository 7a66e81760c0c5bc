// Copies, fills, repeats or compares many byte ranges in one call.
#pragma once

#include "ckh128_cpu.hpp"

namespace ckh {

static inline bool ranges_fit(const ckh_u64 *start, const ckh_u64 *length, std::size_t count,
                              std::size_t size) {
    bool fit = true;
    for (std::size_t i = 0; i < count; i++) {
        // Not start + length <= size: the sum may wrap around.
        fit = fit && length[i] <= size && start[i] <= size - length[i];
    }
    return fit;
}

// The ranges lie inside of their buffers, and the buffers apart.
static inline void copy_ranges(const ckh_u8 *source, ckh_u8 *target, const ckh_u64 *source_start,
                               const ckh_u64 *target_start, const ckh_u64 *length,
                               std::size_t count) {
    for (std::size_t i = 0; i < count; i++) {
        if (length[i] == 0) continue;  // An empty buffer may have no address at all.
        std::memcpy(target + target_start[i], source + source_start[i],
                    static_cast<std::size_t>(length[i]));
    }
}

// Repeats the eight bytes of `pattern`, lowest first, from the start of each range.
static inline void fill_ranges(ckh_u8 *target, const ckh_u64 *start, const ckh_u64 *length,
                               const ckh_u64 *pattern, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) {
        ckh_u8 bytes[8];
        for (std::size_t k = 0; k < 8; k++) bytes[k] = static_cast<ckh_u8>(pattern[i] >> (8 * k));
        ckh_u8 *range = target + start[i];
        const std::size_t size = static_cast<std::size_t>(length[i]);
        if (size == 0) continue;
        if (std::memcmp(bytes, bytes + 1, 7) == 0) {  // One byte repeated, zero above all.
            std::memset(range, bytes[0], size);
            continue;
        }
        std::size_t done = 0;
        for (; done + 8 <= size; done += 8) std::memcpy(range + done, bytes, 8);
        std::memcpy(range + done, bytes, size - done);
    }
}

// Repeats the first `period` bytes of each range over the rest of it. What is written is copied
// on, so that the copies double in size and a short period does not cost a call each.
static inline void repeat_ranges(ckh_u8 *target, const ckh_u64 *start, const ckh_u64 *period,
                                 const ckh_u64 *length, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) {
        ckh_u8 *range = target + start[i];
        const std::size_t size = static_cast<std::size_t>(length[i]);
        std::size_t done = static_cast<std::size_t>(period[i]);
        while (done < size) {
            // From the start of the range: a multiple of the period is in phase.
            const std::size_t step = done < size - done ? done : size - done;
            std::memcpy(range + done, range, step);
            done += step;
        }
    }
}

// Sets equal[i] to whether range i of `a` has the bytes of range i of `b`.
static inline void compare_ranges(const ckh_u8 *a, const ckh_u8 *b, const ckh_u64 *start_a,
                                  const ckh_u64 *start_b, const ckh_u64 *length,
                                  std::size_t count, ckh_u8 *equal) {
    for (std::size_t i = 0; i < count; i++) {
        equal[i] = length[i] == 0 || std::memcmp(a + start_a[i], b + start_b[i],
                                                 static_cast<std::size_t>(length[i])) == 0;
    }
}

}  // namespace ckh
