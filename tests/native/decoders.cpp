// Hands nonsense to what reads a checkpoint back: filters are undone over any bytes, and ranges
// copied, filled, repeated and changed wherever columns of any numbers say, once they are found to
// fit. Buffers have exactly the right size, so that the sanitizers see every read or write too
// far; what is done is compared with loops over single bytes. sanitize.sh builds and runs it.
//
//     decoders CASES SEED
#include "delta.hpp"
#include "filters.hpp"
#include "ranges.hpp"
#include "repeats.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace {

ckh_u64 state = 1;

ckh_u64 noise() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 33;
}

std::size_t below(std::size_t limit) { return static_cast<std::size_t>(noise() % limit); }

// Memory of its own for each buffer, at any alignment; none at all for no bytes.
struct Memory {
    std::unique_ptr<ckh_u8[]> owner;
    ckh_u8 *bytes;
    std::size_t size;

    explicit Memory(std::size_t length) : bytes(nullptr), size(length) {
        if (length == 0) return;
        const std::size_t offset = below(8);
        owner.reset(new ckh_u8[length + offset]);
        bytes = owner.get() + offset;
        const std::size_t kind = below(3);
        for (std::size_t i = 0; i < length; i++) {
            bytes[i] = kind == 0 ? 0 : static_cast<ckh_u8>(kind == 1 ? noise() : noise() % 2);
        }
    }
    std::vector<ckh_u8> copy() const { return std::vector<ckh_u8>(bytes, bytes + size); }
    bool is(const std::vector<ckh_u8> &other) const {
        return size == 0 || std::memcmp(bytes, other.data(), size) == 0;
    }
};

using Column = std::vector<ckh_u64>;

// Mostly numbers that may fit; some that nothing fits, or that wrap around when added.
ckh_u64 number(std::size_t size) {
    switch (below(12)) {
        case 0: return ~0ull - below(size + 2);
        case 1: return (1ull << 63) + below(size + 2);
        case 2: return size - below(2);
        default: return below(size + 1);
    }
}

Column column(std::size_t count, std::size_t size) {
    Column numbers(count);
    for (ckh_u64 &one : numbers) one = number(size);
    return numbers;
}

// As they would be had they been checked: the length is cut to what is left behind the start.
void fit(const Column &start, Column &length, std::size_t size) {
    for (std::size_t i = 0; i < start.size(); i++) {
        if (start[i] <= size && length[i] > size - start[i]) length[i] = size - start[i];
    }
}

bool really_fit(const Column &start, const Column &length, std::size_t size) {
    for (std::size_t i = 0; i < start.size(); i++) {
        if (start[i] > size || length[i] > size || start[i] + length[i] > size) return false;
    }
    return true;
}

int check_filters(const std::vector<ckh::FilterSteps> &all) {
    const unsigned filter = static_cast<unsigned>(below(4));
    const std::size_t word = filter == ckh::kPlain ? 1 : 1 + below(16);
    const std::size_t wanted = below(4) == 0 ? below(3000) : below(200);
    const std::size_t room = ckh::filter_max_bytes(filter, word, wanted);
    Memory stored(below(4) == 0 ? below(room + 20) : filter == ckh::kWords ? room : wanted);
    if (filter == ckh::kWords && stored.size == room && below(2) == 0) {
        // A bitmap whose length is right, more often than chance would have it.
        const Memory plain(wanted);
        Memory filtered(room);
        const std::size_t size = all[0].apply(filter, word, plain.bytes, wanted, filtered.bytes);
        stored = Memory(size);
        if (size != 0) std::memcpy(stored.bytes, filtered.bytes, size);
        if (size != 0 && below(2) == 0) stored.bytes[below(size)] ^= 1u << below(8);
    }
    int wrong = 0;
    std::vector<ckh_u8> first;
    bool first_verdict = false;
    for (std::size_t k = 0; k < all.size(); k++) {
        const Memory plain(wanted);
        const bool verdict =
            all[k].undo(filter, word, stored.bytes, stored.size, plain.bytes, wanted);
        if (k == 0) {
            first_verdict = verdict;
            first = plain.copy();
        }
        wrong += verdict != first_verdict || (verdict && !plain.is(first));
    }
    return wrong;
}

int check_ranges() {
    const std::size_t count = below(9);
    Memory source(below(300)), target(below(300));
    Column from = column(count, source.size), to = column(count, target.size);
    Column length = column(count, target.size);
    fit(from, length, source.size);
    fit(to, length, target.size);
    const bool fits = ckh::ranges_fit(from.data(), length.data(), count, source.size) &&
                      ckh::ranges_fit(to.data(), length.data(), count, target.size);
    const bool really =
        really_fit(from, length, source.size) && really_fit(to, length, target.size);
    if (fits != really) return 1;
    if (!fits) return 0;
    std::vector<ckh_u8> expected = target.copy();
    const long op = static_cast<long>(below(2)), word = 1l << below(4);
    const std::size_t what = below(4);
    for (std::size_t i = 0; i < count; i++) {
        for (std::size_t k = 0; k < length[i]; k++) {
            if (what == 0) expected[to[i] + k] = source.bytes[from[i] + k];
            if (what == 1) expected[to[i] + k] = static_cast<ckh_u8>(from[i] >> 8 * (k % 8));
        }
    }
    if (what == 0) {
        ckh::copy_ranges(source.bytes, target.bytes, from.data(), to.data(), length.data(), count);
        return !target.is(expected);
    }
    if (what == 1) {
        ckh::fill_ranges(target.bytes, to.data(), length.data(), from.data(), count);
        return !target.is(expected);
    }
    if (what == 2) {
        std::vector<ckh_u8> equal(count);
        ckh::compare_ranges(source.bytes, target.bytes, from.data(), to.data(), length.data(),
                            count, equal.data());
        return 0;
    }
    const auto apply = ckh::delta_applier(op, word);
    for (std::size_t i = 0; i < count; i++) {
        if (length[i] == 0) continue;
        ckh_u8 *place = target.bytes + to[i];
        apply(place, source.bytes + from[i], place, static_cast<std::size_t>(length[i]));
    }
    return 0;
}

int check_repeats() {
    const std::size_t count = below(9);
    Memory target(below(300));
    Column to = column(count, target.size), length = column(count, target.size);
    Column period = column(count, target.size);
    fit(to, length, target.size);
    bool fits = ckh::ranges_fit(to.data(), length.data(), count, target.size);
    for (std::size_t i = 0; i < count; i++) {
        fits = fits && period[i] != 0 && period[i] <= length[i];
    }
    if (!fits) return 0;
    std::vector<ckh_u8> expected = target.copy();
    for (std::size_t i = 0; i < count; i++) {
        for (std::size_t k = period[i]; k < length[i]; k++) {
            expected[to[i] + k] = expected[to[i] + k - period[i]];
        }
    }
    ckh::repeat_ranges(target.bytes, to.data(), period.data(), length.data(), count);
    return !target.is(expected);
}

int check_rows() {
    const std::size_t count = below(60), kinds = 1 + below(5);
    std::vector<ckh_u64> length(count), source(count);
    std::vector<ckh_u32> pack(count);
    for (std::size_t i = 0; i < count; i++) {
        length[i] = below(4) == 0 ? ~0ull : 8;
        source[i] = below(kinds) * 0x0123456789ABCDEFull;
        pack[i] = static_cast<ckh_u32>(0u - below(2));
    }
    std::vector<std::int64_t> row(count / 3), period(count / 3), rows(count / 3);
    const std::size_t found =
        ckh::find_repeats({length.data(), source.data(), pack.data(), count},
                          {row.data(), period.data(), rows.data()});
    int wrong = found > count / 3;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < found; i++) {
        wrong += row[i] < end || period[i] < 1 || period[i] > row[i] || rows[i] < 3;
        end = row[i] + rows[i];
        for (std::int64_t k = row[i]; k < end; k++) {
            const auto a = static_cast<std::size_t>(k), b = static_cast<std::size_t>(k - period[i]);
            wrong += length[a] != length[b] || source[a] != source[b] || pack[a] != pack[b];
        }
    }
    return wrong + (end > static_cast<std::int64_t>(count));
}

}  // namespace

int main(int argc, char **argv) {
    const long cases = argc > 1 ? std::atol(argv[1]) : 1000;
    state = argc > 2 ? static_cast<ckh_u64>(std::atoll(argv[2])) : 1;
    std::vector<ckh::FilterSteps> steps;
    for (const ckh::Variant &variant : ckh::variants()) {
        steps.push_back(ckh::filter_steps(variant.name));
    }
    long wrong = 0;
    for (long i = 0; i < cases; i++) {
        wrong += check_filters(steps) + check_ranges() + check_repeats() + check_rows();
    }
    std::printf("%ld cases, %ld wrong\n", cases, wrong);
    return wrong != 0;
}
