// Runs the filters, forwards, back and over damaged bytes, in buffers of exactly the right size, so
// that the sanitizers see every read or write too far. test_filters.py builds and runs it.
#include "filters.hpp"

#include <cstdio>
#include <memory>

namespace {

struct Memory {
    std::unique_ptr<ckh_u8[]> owner;
    ckh_u8 *bytes;

    explicit Memory(std::size_t size, std::size_t offset = 0)
        : owner(new ckh_u8[size + offset]), bytes(owner.get() + offset) {}
};

ckh_u64 state = 1;

ckh_u8 noise() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<ckh_u8>(state >> 56);
}

void make(ckh_u8 *bytes, std::size_t size, unsigned share) {
    for (std::size_t i = 0; i < size; i++) bytes[i] = noise();
    for (std::size_t i = 0; i < size; i += 8) {
        const std::size_t piece = size - i < 8 ? size - i : 8;
        if (noise() >= share) std::memset(bytes + i, 0, piece);
    }
}

int check(ckh::FilterSteps steps, ckh::FilterSteps other, unsigned filter, std::size_t word,
          std::size_t size, unsigned share) {
    const Memory plain(size, size % 5), back(size, size % 3);
    make(plain.bytes, size, share);
    const std::size_t room = ckh::filter_max_bytes(filter, word, size);
    const Memory widest(room), twin(room);
    const std::size_t stored_size = steps.apply(filter, word, plain.bytes, size, widest.bytes);
    const std::size_t twin_size = other.apply(filter, word, plain.bytes, size, twin.bytes);
    int wrong = stored_size > room || stored_size != twin_size ||
                std::memcmp(widest.bytes, twin.bytes, stored_size) != 0;
    const Memory stored(stored_size);
    std::memcpy(stored.bytes, widest.bytes, stored_size);
    wrong += !steps.undo(filter, word, stored.bytes, stored_size, back.bytes, size);
    wrong += std::memcmp(back.bytes, plain.bytes, size) != 0;
    // Damage: any verdict is right, any touch beyond the buffers is not.
    for (std::size_t turn = 0; turn < 6 && stored_size != 0; turn++) {
        const std::size_t cut_size = turn < 3 ? stored_size : noise() % (stored_size + 1);
        const Memory damaged(cut_size);
        std::memcpy(damaged.bytes, stored.bytes, cut_size);
        if (cut_size != 0) damaged.bytes[noise() % cut_size] ^= static_cast<ckh_u8>(1 << turn);
        const std::size_t wanted = turn % 2 == 0 ? size : noise();
        const Memory target(wanted);
        steps.undo(filter, word, damaged.bytes, cut_size, target.bytes, wanted);
    }
    return wrong;
}

}  // namespace

int main() {
    int cases = 0, wrong = 0;
    const auto portable = ckh::filter_steps("scalar");
    for (const ckh::Variant &variant : ckh::variants()) {
        const auto steps = ckh::filter_steps(variant.name);
        for (unsigned filter = ckh::kPlain; filter <= ckh::kWords; filter++) {
            for (std::size_t word = 1; word <= ckh::kWordMax; word++) {
                for (const std::size_t count : {0, 1, 7, 8, 31, 32, 33, 64, 511, 512, 1100}) {
                    for (const unsigned share : {0u, 20u, 256u}) {
                        const std::size_t size = count * word + noise() % word;
                        wrong += check(steps, portable, filter, word, size, share);
                        cases++;
                    }
                }
            }
        }
    }
    std::printf("%d cases, %d wrong\n", cases, wrong);
    return wrong != 0;
}
