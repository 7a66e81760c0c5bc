// Which digests were seen before: a log of them in the order of their numbers, and a table that
// finds the place of one in the log. Also joins changed cells to runs.
//
// ckptflow/data/history.py holds the arrays and says what the numbers mean. A slot of the table
// is 0 or {32 bits of the digest, place in the log + 1}; slots are a power of two, and a digest is
// looked for from its own slot on until one is empty. A look-up waits for memory twice, for the
// slot and for the log, so both are asked for some look-ups ahead.
#pragma once

#include "diff.hpp"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ckh {

constexpr std::size_t kLogRowsMax = 0xFFFFFFFEu;
constexpr std::size_t kAhead = 16;  // Look-ups that wait for memory at a time, twice over.

CKH_FORCE_INLINE void prefetch(const void *address) {
#if defined(__GNUC__)
    __builtin_prefetch(address);
#else
    (void)address;
#endif
}

// Digests as Python holds them, with room for more.
struct Log {
    ckh_u64 *halves;
    std::size_t count;
};

class Table {
  public:
    // `size` is a power of two.
    Table(ckh_u64 *slots, std::size_t size) : slots_(slots), size_(size) {}

    // Beyond two thirds, chains of slots grow long.
    bool is_full(std::size_t count) const { return count >= size_ - size_ / 3; }
    std::size_t home(ckh_u64 lo) const { return static_cast<std::size_t>(lo) & (size_ - 1); }
    std::size_t after(std::size_t slot) const { return (slot + 1) & (size_ - 1); }
    void prefetch_home(ckh_u64 lo) const { prefetch(slots_ + home(lo)); }

    // Asks for the row that the first slot names, if it may be the right one; else for the first
    // row, which is in the cache anyway: a branch here would be mispredicted half of the time.
    void prefetch_row(const Log &log, ckh_u64 lo, ckh_u64 hi) const {
        const ckh_u64 slot = slots_[home(lo)];
        const bool likely = slot != 0 && slot >> 32 == (hi & 0xFFFFFFFFu);
        prefetch(log.halves + 2 * (likely ? row_in(slot) : 0));
    }

    // The row of a digest, which is appended to the log if it is not there.
    std::size_t find_or_add(Log &log, ckh_u64 lo, ckh_u64 hi) {
        const ckh_u64 tag = hi << 32;
        for (std::size_t s = home(lo);; s = after(s)) {
            const ckh_u64 slot = slots_[s];
            if (slot == 0) {
                log.halves[2 * log.count] = lo;
                log.halves[2 * log.count + 1] = hi;
                slots_[s] = tag | (log.count + 1);
                return log.count++;
            }
            if ((slot ^ tag) >> 32 != 0) continue;
            const std::size_t row = row_in(slot);
            // No slot of ours names a row that is not there.
            if (row < log.count && log.halves[2 * row] == lo && log.halves[2 * row + 1] == hi) {
                return row;
            }
        }
    }

    // Fills an empty table with a log that has no digest twice.
    void fill(Digests log) {
        advise_huge_pages();
        for (std::size_t i = 0; i < log.count; i++) {
            if (i + 2 * kAhead < log.count) prefetch_home(log.halves[2 * (i + 2 * kAhead)]);
            std::size_t s = home(log.halves[2 * i]);
            while (slots_[s] != 0) s = after(s);
            slots_[s] = log.halves[2 * i + 1] << 32 | (i + 1);
        }
    }

  private:
    static std::size_t row_in(ckh_u64 slot) {
        return static_cast<std::size_t>(slot & 0xFFFFFFFFu) - 1;
    }

    // Random places in a large table miss the TLB as well as the cache; 2 MiB pages spare that.
    void advise_huge_pages() {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        constexpr std::uintptr_t kPage = 2 << 20;
        const auto start = (reinterpret_cast<std::uintptr_t>(slots_) + kPage - 1) / kPage * kPage;
        const auto end = reinterpret_cast<std::uintptr_t>(slots_ + size_) / kPage * kPage;
        if (start < end) madvise(reinterpret_cast<void *>(start), end - start, MADV_HUGEPAGE);
#endif
    }

    ckh_u64 *slots_;
    std::size_t size_;
};

// Numbers the cells of kind kData in order: ids[i] is first_id + its row in the log; new ones keep
// the kind, known ones become kKnown. Stops where the table is full and returns how many were
// done. The log has room for all.
static inline std::size_t find_or_add(Digests cells, ckh_u8 *kinds, ckh_u64 *ids, Log &log,
                                      Table table, ckh_u64 first_id) {
    Log ours = log;  // A copy may stay in registers: nothing that is written can be part of it.
    std::size_t i = 0;
    for (; i < cells.count; i++) {
        if (const std::size_t far = i + 2 * kAhead; far < cells.count) {
            table.prefetch_home(cells.halves[2 * far]);
        }
        if (const std::size_t near = i + kAhead; near < cells.count) {
            table.prefetch_row(ours, cells.halves[2 * near], cells.halves[2 * near + 1]);
        }
        ids[i] = 0;
        if (kinds[i] != kData) continue;
        if (table.is_full(ours.count)) break;
        const std::size_t before = ours.count;
        const std::size_t row =
            table.find_or_add(ours, cells.halves[2 * i], cells.halves[2 * i + 1]);
        ids[i] = first_id + row;
        if (row < before) kinds[i] = kKnown;
    }
    log.count = ours.count;
    return i;
}

struct ChangedCells {
    const ckh_u64 *index;
    const ckh_u8 *kind;
    const ckh_u64 *pattern, *id;
    std::size_t count;

    ckh_u64 ref(std::size_t i) const { return kind[i] == kFill ? pattern[i] : id[i]; }
    // Whether cell i goes on where the one before ends.
    bool goes_on(std::size_t i) const {
        const ckh_u64 step = kind[i] == kFill ? 0 : 1;
        return index[i] == index[i - 1] + 1 && kind[i] == kind[i - 1] &&
               ref(i) == ref(i - 1) + step;
    }
};

// Joins changed cells of a region of `length` bytes to runs; there is room for one run a cell.
// Returns how many there are.
static inline std::size_t collect_runs(ChangedCells cells, ckh_u64 cell_bytes, ckh_u64 length,
                                       RunColumns out) {
    std::size_t runs = 0;
    for (std::size_t i = 0; i < cells.count; i++) {
        const ckh_u64 start = cells.index[i] * cell_bytes, rest = length - start;
        if (i == 0 || !cells.goes_on(i)) {
            out.kind[runs] = cells.kind[i];
            out.start[runs] = start;
            out.length[runs] = 0;
            out.ref[runs] = cells.ref(i);
            runs++;
        }
        out.length[runs - 1] += rest < cell_bytes ? rest : cell_bytes;
    }
    return runs;
}

}  // namespace ckh
