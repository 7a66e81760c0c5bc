// New bytes as differences from old ones, word by word, and back.
//
// Words are little-endian; the bytes behind the last whole word are xored whatever the operation.
// Loads and stores take any alignment; the loops have no branches, and compilers make vector code
// of them, as fast as memory for every target they know.
#pragma once

#include "ckh128.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ckh {

// Xor, or subtract and then zigzag: small differences of either sign become small numbers.
enum DeltaOp { kXor = 0, kSubtract = 1 };

template <typename Word>
inline Word swapped_to_little(Word word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    Word swapped = 0;
    for (std::size_t i = 0; i < sizeof word; i++) {
        swapped |= static_cast<Word>((word >> (8 * i) & 0xFF) << (8 * (sizeof word - 1 - i)));
    }
    return swapped;
#else
    return word;
#endif
}

template <typename Word>
inline Word load_word(const ckh_u8 *bytes) {
    Word word;
    std::memcpy(&word, bytes, sizeof word);
    return swapped_to_little(word);
}

template <typename Word>
inline void store_word(ckh_u8 *bytes, Word word) {
    word = swapped_to_little(word);
    std::memcpy(bytes, &word, sizeof word);
}

// `fresh` minus `old`, and back. The sign goes to the lowest bit; casts cut what C++ widened.
template <typename Word>
inline Word difference(Word fresh, Word old) {
    const Word d = static_cast<Word>(fresh - old);
    const Word sign = static_cast<Word>(0 - (d >> (8 * sizeof d - 1)));
    return static_cast<Word>(static_cast<Word>(d << 1) ^ sign);
}

template <typename Word>
inline Word sum(Word old, Word stored) {
    const Word sign = static_cast<Word>(0 - (stored & 1));
    return static_cast<Word>(old + static_cast<Word>((stored >> 1) ^ sign));
}

template <typename Word, typename Combine>
void combine_words(const ckh_u8 *a, const ckh_u8 *b, ckh_u8 *out, std::size_t length,
                   Combine combine) {
    const std::size_t whole = length / sizeof(Word) * sizeof(Word);
    for (std::size_t i = 0; i < whole; i += sizeof(Word)) {
        store_word<Word>(out + i, combine(load_word<Word>(a + i), load_word<Word>(b + i)));
    }
    for (std::size_t i = whole; i < length; i++) out[i] = a[i] ^ b[i];
}

template <typename Word>
void make_delta_of(const ckh_u8 *fresh, const ckh_u8 *old, ckh_u8 *out, std::size_t length) {
    combine_words<Word>(fresh, old, out, length,
                        [](Word a, Word b) { return difference<Word>(a, b); });
}

template <typename Word>
void apply_delta_of(const ckh_u8 *old, const ckh_u8 *stored, ckh_u8 *out, std::size_t length) {
    combine_words<Word>(old, stored, out, length,
                        [](Word a, Word b) { return sum<Word>(a, b); });
}

inline void xor_bytes(const ckh_u8 *a, const ckh_u8 *b, ckh_u8 *out, std::size_t length) {
    combine_words<ckh_u64>(a, b, out, length, [](ckh_u64 x, ckh_u64 y) { return x ^ y; });
}

// (fresh, old, out, length) or (old, stored, out, length); `out` may be either of them.
using DeltaFunction = void (*)(const ckh_u8 *, const ckh_u8 *, ckh_u8 *, std::size_t);

// Null for an operation or a size of words that there is not.
inline DeltaFunction delta_maker(long op, long word_bytes) {
    if (op != kXor && op != kSubtract) return nullptr;
    switch (word_bytes) {
        case 1: return op == kXor ? xor_bytes : make_delta_of<ckh_u8>;
        case 2: return op == kXor ? xor_bytes : make_delta_of<std::uint16_t>;
        case 4: return op == kXor ? xor_bytes : make_delta_of<ckh_u32>;
        case 8: return op == kXor ? xor_bytes : make_delta_of<ckh_u64>;
        default: return nullptr;
    }
}

inline DeltaFunction delta_applier(long op, long word_bytes) {
    if (op != kXor && op != kSubtract) return nullptr;
    switch (word_bytes) {
        case 1: return op == kXor ? xor_bytes : apply_delta_of<ckh_u8>;
        case 2: return op == kXor ? xor_bytes : apply_delta_of<std::uint16_t>;
        case 4: return op == kXor ? xor_bytes : apply_delta_of<ckh_u32>;
        case 8: return op == kXor ? xor_bytes : apply_delta_of<ckh_u64>;
        default: return nullptr;
    }
}

}  // namespace ckh
