// Adds products in buffers of exactly the right size at odd addresses, so that the sanitizers see
// every read or write too far. test_galois.py builds and runs it.
#include "galois.hpp"

#include <cstdio>
#include <memory>

namespace {

int check(const char *name, ckh_u8 factor, std::size_t size, std::size_t offset) {
    const std::unique_ptr<ckh_u8[]> source(new ckh_u8[size + offset]);
    const std::unique_ptr<ckh_u8[]> target(new ckh_u8[size + offset]);
    for (std::size_t i = 0; i < size + offset; i++) {
        source[i] = static_cast<ckh_u8>(i * 131 + 7);
        target[i] = static_cast<ckh_u8>(i * 29 + 3);
    }
    ckh::galois_add(name, factor, source.get() + offset, target.get() + offset, size);
    for (std::size_t i = 0; i < size; i++) {
        const auto before = static_cast<ckh_u8>((i + offset) * 29 + 3);
        const ckh_u8 product = ckh::galois_multiply(factor, source[i + offset]);
        if (target[i + offset] != static_cast<ckh_u8>(before ^ product)) return 1;
    }
    return 0;
}

}  // namespace

int main() {
    int wrong = 0;
    for (const ckh::Variant &variant : ckh::variants()) {
        for (unsigned factor = 0; factor < 256; factor += 3) {
            for (const std::size_t size : {0, 1, 31, 32, 33, 100, 1023, 1024, 2000}) {
                wrong += check(variant.name, static_cast<ckh_u8>(factor), size, factor % 5);
            }
        }
        wrong += check(variant.name, 1, 777, 1);
    }
    std::printf("%d wrong\n", wrong);
    return wrong != 0;
}
