// GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D): target ^= factor * source, byte by byte.
//
// A product with a constant is linear over GF(2), so that of a byte is that of its low half plus
// that of its high half: two tables of 16 bytes, which one vector shuffle looks up 32 times at
// once (Plank, Greenan, Miller: "Screaming Fast Galois Field Arithmetic Using Intel SIMD
// Instructions", FAST 2013). CPUs without AVX2 use one table of 256 bytes. galois_check.cpp runs
// both under the sanitizers, test_galois.py compares them with a version in NumPy.
#pragma once

#include "ckh128_cpu.hpp"

#include <cstring>

namespace ckh {

static inline ckh_u8 galois_multiply(ckh_u8 a, ckh_u8 b) {
    unsigned product = 0, x = a;
    for (unsigned bit = 0; bit < 8; bit++) {
        if (b >> bit & 1) product ^= x;
        x = x << 1 ^ (x & 0x80 ? 0x11D : 0);
    }
    return static_cast<ckh_u8>(product);
}

static inline void galois_add_rest(ckh_u8 factor, const ckh_u8 *source, ckh_u8 *target,
                                   std::size_t size) {
    for (std::size_t i = 0; i < size; i++) target[i] ^= galois_multiply(factor, source[i]);
}

static inline void galois_xor(const ckh_u8 *source, ckh_u8 *target, std::size_t size) {
    std::size_t i = 0;
    for (; i + 32 <= size; i += 32) {  // Compilers make vector code of it.
        ckh_u64 a[4], b[4];
        std::memcpy(a, source + i, 32);
        std::memcpy(b, target + i, 32);
        for (int j = 0; j < 4; j++) b[j] ^= a[j];
        std::memcpy(target + i, b, 32);
    }
    for (; i < size; i++) target[i] ^= source[i];
}

static inline void galois_add_portable(ckh_u8 factor, const ckh_u8 *source, ckh_u8 *target,
                                       std::size_t size) {
    if (size < 1024) {  // Not worth a table.
        galois_add_rest(factor, source, target, size);
        return;
    }
    ckh_u8 product[256];
    for (unsigned x = 0; x < 256; x++) {
        product[x] = galois_multiply(factor, static_cast<ckh_u8>(x));
    }
    for (std::size_t i = 0; i < size; i++) target[i] ^= product[source[i]];
}

#if defined(CKH_X86)
CKH_AVX2 static inline void galois_add_avx2(ckh_u8 factor, const ckh_u8 *source, ckh_u8 *target,
                                            std::size_t size) {
    ckh_u8 low[32], high[32];
    for (unsigned x = 0; x < 32; x++) {
        low[x] = galois_multiply(factor, static_cast<ckh_u8>(x & 15));
        high[x] = galois_multiply(factor, static_cast<ckh_u8>((x & 15) << 4));
    }
    const __m256i of_low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(low));
    const __m256i of_high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(high));
    const __m256i half = _mm256_set1_epi8(15);
    std::size_t i = 0;
    for (; i + 32 <= size; i += 32) {
        auto *place = reinterpret_cast<__m256i *>(target + i);
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(source + i));
        const __m256i a = _mm256_shuffle_epi8(of_low, _mm256_and_si256(x, half));
        const __m256i b =
            _mm256_shuffle_epi8(of_high, _mm256_and_si256(_mm256_srli_epi64(x, 4), half));
        const __m256i sum = _mm256_xor_si256(_mm256_loadu_si256(place), _mm256_xor_si256(a, b));
        _mm256_storeu_si256(place, sum);
    }
    galois_add_rest(factor, source + i, target + i, size - i);
}
#endif

// target ^= factor * source. `name` is that of a variant of the digest; all but the portable one
// have AVX2.
static inline void galois_add(const char *name, ckh_u8 factor, const ckh_u8 *source,
                              ckh_u8 *target, std::size_t size) {
    if (factor == 0) return;
    if (factor == 1) return galois_xor(source, target, size);
#if defined(CKH_X86)
    if (std::strcmp(name, "scalar") != 0) return galois_add_avx2(factor, source, target, size);
#endif
    (void)name;
    galois_add_portable(factor, source, target, size);
}

}  // namespace ckh
