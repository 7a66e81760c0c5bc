// Filters: the same bytes in an order, or with a gap list, that a codec can do more with.
//
// docs/reference/format-v1.md defines the byte layouts; ckptflow/data/filters_numpy.py holds the
// same functions for where this core is missing. All rests on one step, done with AVX2 or in
// plain C++: splitting words into planes, of which plane j has byte j of every word. Nothing
// here allocates, throws or touches Python, and undoing never looks outside of its buffers,
// whatever they hold.
#pragma once

#include "ckh128_cpu.hpp"

namespace ckh {

enum Filter : unsigned { kPlain = 0, kShuffle = 1, kBitShuffle = 2, kWords = 3 };

constexpr std::size_t kWordMax = 16;

// Words in flight between two steps: 16 KiB at the most, and whole cache lines of every plane, so
// that planes whose starts share a cache set do not throw each other out.
constexpr std::size_t kTileWords = 512;

CKH_FORCE_INLINE void store_pair(ckh_u8 *bytes, ckh_u64 pair) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    pair = __builtin_bswap64(pair);
#endif
    std::memcpy(bytes, &pair, 8);
}

// The 8 x 8 bits of each eight bytes transposed: bit i of byte j becomes bit j of byte i.
// (Warren, Hacker's Delight, section 7-3.)
CKH_FORCE_INLINE void transpose_bits(ckh_u8 *bytes, std::size_t eights) {
    for (std::size_t i = 0; i < eights; i++) {
        ckh_u64 x = load_pair(bytes + 8 * i);
        ckh_u64 t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
        x ^= t ^ (t << 7);
        t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
        x ^= t ^ (t << 14);
        t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
        x ^= t ^ (t << 28);
        store_pair(bytes + 8 * i, x);
    }
}

static inline unsigned count_bits(ckh_u64 x) {
    x -= (x >> 1) & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Full;
    return static_cast<unsigned>(x * 0x0101010101010101ull >> 56);
}

static inline std::size_t count_bits(const ckh_u8 *bitmap, std::size_t size) {
    std::size_t found = 0, i = 0;
    for (; i + 8 <= size; i += 8) found += count_bits(load_pair(bitmap + i));
    for (; i < size; i++) found += count_bits(bitmap[i]);
    return found;
}

// How many words are not zero, and which: bit i % 8 of byte i / 8. Bits behind the last are 0.
template <std::size_t fixed>
CKH_FORCE_INLINE std::size_t mark_words(const ckh_u8 *words, std::size_t any, std::size_t count,
                                        ckh_u8 *bitmap) {
    constexpr ckh_u8 zeros[kWordMax] = {};
    const std::size_t word = fixed != 0 ? fixed : any;
    std::size_t found = 0;
    for (std::size_t first = 0; first < count; first += 8) {
        const ckh_u8 *group = words + first * word;
        const std::size_t size = count - first < 8 ? count - first : 8;
        unsigned bits = 0;
        ckh_u64 all = size < 8;
        if (size == 8) {  // Mostly all eight are zero, which a few loads tell.
            for (std::size_t i = 0; i < word; i++) all |= load_pair(group + 8 * i);
        }
        if (all != 0) {
            for (std::size_t i = 0; i < size; i++) {
                const bool is_zero = std::memcmp(group + i * word, zeros, word) == 0;
                bits |= static_cast<unsigned>(!is_zero) << i;
            }
        }
        bitmap[first / 8] = static_cast<ckh_u8>(bits);
        found += count_bits(bits);
    }
    return found;
}

// What the instruction sets do differently. `split` puts byte j of word i at planes[j * stride
// + i], `join` undoes that; both for any word from 1 to 16 bytes.
struct PortableSteps {
    static constexpr std::size_t kLineWords = 64;  // Whole cache lines of each plane in turn.

    template <std::size_t fixed>
    static void split_words(const ckh_u8 *words, std::size_t any, std::size_t first,
                            std::size_t count, ckh_u8 *planes, std::size_t stride) {
        if (fixed != 0) {  // The compiler unrolls it, or has vectors for it.
            const std::size_t word = fixed;
            for (std::size_t i = first; i < count; i++) {
                for (std::size_t j = 0; j < word; j++) planes[j * stride + i] = words[i * word + j];
            }
            return;
        }
        const std::size_t word = any;
        for (std::size_t end; first < count; first = end) {
            end = count - first < kLineWords ? count : first + kLineWords;
            for (std::size_t j = 0; j < word; j++) {
                for (std::size_t i = first; i < end; i++) {
                    planes[j * stride + i] = words[i * word + j];
                }
            }
        }
    }

    template <std::size_t fixed>
    static void join_words(const ckh_u8 *planes, std::size_t stride, std::size_t any,
                           std::size_t first, std::size_t count, ckh_u8 *words) {
        if (fixed != 0) {  // The compiler unrolls it, or has vectors for it.
            const std::size_t word = fixed;
            for (std::size_t i = first; i < count; i++) {
                for (std::size_t j = 0; j < word; j++) words[i * word + j] = planes[j * stride + i];
            }
            return;
        }
        const std::size_t word = any;
        for (std::size_t end; first < count; first = end) {
            end = count - first < kLineWords ? count : first + kLineWords;
            for (std::size_t j = 0; j < word; j++) {
                for (std::size_t i = first; i < end; i++) {
                    words[i * word + j] = planes[j * stride + i];
                }
            }
        }
    }

    static void split(const ckh_u8 *words, std::size_t word, std::size_t count, ckh_u8 *planes,
                      std::size_t stride) {
        switch (word) {
            case 1: std::memcpy(planes, words, count); break;
            case 2: split_words<2>(words, 2, 0, count, planes, stride); break;
            case 4: split_words<4>(words, 4, 0, count, planes, stride); break;
            default: split_words<0>(words, word, 0, count, planes, stride);
        }
    }

    static void join(const ckh_u8 *planes, std::size_t stride, std::size_t word,
                     std::size_t count, ckh_u8 *words) {
        switch (word) {
            case 1: std::memcpy(words, planes, count); break;
            case 2: join_words<2>(planes, stride, 2, 0, count, words); break;
            case 4: join_words<4>(planes, stride, 4, 0, count, words); break;
            case 8: join_words<8>(planes, stride, 8, 0, count, words); break;
            default: join_words<0>(planes, stride, word, 0, count, words);
        }
    }

    static void transpose(ckh_u8 *bytes, std::size_t eights) { transpose_bits(bytes, eights); }
};

#if defined(CKH_X86)

// Words of 2^k bytes as a perfect shuffle. Number the bytes of 16 words, which fill `word`
// registers, by k bits within a word below 4 bits for the word. Unpacking register m with
// register m + word / 2 rotates all these numbers left by one bit: four times bring the byte's
// number above the word's (split), k times bring it back (join). A 256-bit register does it for
// two times 16 words, one in each half.
struct Avx2Steps {
    template <std::size_t word, unsigned times>
    CKH_AVX2 CKH_FORCE_INLINE static void rotate(__m256i *rows) {
        __m256i next[word];
        for (unsigned turn = 0; turn < times; turn++) {
            for (std::size_t m = 0; m < word / 2; m++) {
                next[2 * m] = _mm256_unpacklo_epi8(rows[m], rows[m + word / 2]);
                next[2 * m + 1] = _mm256_unpackhi_epi8(rows[m], rows[m + word / 2]);
            }
            for (std::size_t m = 0; m < word; m++) rows[m] = next[m];
        }
    }

    template <std::size_t word>
    CKH_AVX2 static void split_words(const ckh_u8 *words, std::size_t count, ckh_u8 *planes,
                                     std::size_t stride) {
        std::size_t i = 0;
        for (; i + 32 <= count; i += 32) {
            __m256i rows[word];
            for (std::size_t m = 0; m < word; m++) {
                const auto *low = reinterpret_cast<const __m128i *>(words + i * word) + m;
                rows[m] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                                  _mm_loadu_si128(low + word), 1);
            }
            rotate<word, 4>(rows);
            for (std::size_t j = 0; j < word; j++) {
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(planes + j * stride + i), rows[j]);
            }
        }
        PortableSteps::split_words<word>(words, word, i, count, planes, stride);
    }

    template <std::size_t word, unsigned log2_word>
    CKH_AVX2 static void join_words(const ckh_u8 *planes, std::size_t stride, std::size_t count,
                                    ckh_u8 *words) {
        std::size_t i = 0;
        for (; i + 32 <= count; i += 32) {
            __m256i rows[word];
            for (std::size_t j = 0; j < word; j++) {
                rows[j] = _mm256_loadu_si256(
                    reinterpret_cast<const __m256i *>(planes + j * stride + i));
            }
            rotate<word, log2_word>(rows);
            for (std::size_t m = 0; m < word; m++) {
                auto *low = reinterpret_cast<__m128i *>(words + i * word) + m;
                _mm_storeu_si128(low, _mm256_castsi256_si128(rows[m]));
                _mm_storeu_si128(low + word, _mm256_extracti128_si256(rows[m], 1));
            }
        }
        PortableSteps::join_words<word>(planes, stride, word, i, count, words);
    }

    static void split(const ckh_u8 *words, std::size_t word, std::size_t count, ckh_u8 *planes,
                      std::size_t stride) {
        switch (word) {
            case 2: split_words<2>(words, count, planes, stride); break;
            case 4: split_words<4>(words, count, planes, stride); break;
            case 8: split_words<8>(words, count, planes, stride); break;
            case 16: split_words<16>(words, count, planes, stride); break;
            default: PortableSteps::split(words, word, count, planes, stride);
        }
    }

    static void join(const ckh_u8 *planes, std::size_t stride, std::size_t word,
                     std::size_t count, ckh_u8 *words) {
        switch (word) {
            case 2: join_words<2, 1>(planes, stride, count, words); break;
            case 4: join_words<4, 2>(planes, stride, count, words); break;
            case 8: join_words<8, 3>(planes, stride, count, words); break;
            case 16: join_words<16, 4>(planes, stride, count, words); break;
            default: PortableSteps::join(planes, stride, word, count, words);
        }
    }

    CKH_AVX2 static void transpose(ckh_u8 *bytes, std::size_t eights) {
        transpose_bits(bytes, eights);
    }
};

#endif  // CKH_X86

template <class Steps>
struct BitShuffle {
    // How many words take part: groups of eight, so that a plane of bits has whole bytes.
    static std::size_t words_of(std::size_t size, std::size_t word) { return size / word / 8 * 8; }

    static void apply(const ckh_u8 *words, std::size_t word, std::size_t count, ckh_u8 *out) {
        ckh_u8 tile[kWordMax * kTileWords];
        for (std::size_t first = 0; first < count; first += kTileWords) {
            const std::size_t size = count - first < kTileWords ? count - first : kTileWords;
            Steps::split(words + first * word, word, size, tile, kTileWords);
            for (std::size_t j = 0; j < word; j++) {
                ckh_u8 *plane = tile + j * kTileWords;
                Steps::transpose(plane, size / 8);
                Steps::split(plane, 8, size / 8, out + j * count + first / 8, count / 8);
            }
        }
    }

    static void undo(const ckh_u8 *stored, std::size_t word, std::size_t count, ckh_u8 *words) {
        ckh_u8 tile[kWordMax * kTileWords];
        for (std::size_t first = 0; first < count; first += kTileWords) {
            const std::size_t size = count - first < kTileWords ? count - first : kTileWords;
            for (std::size_t j = 0; j < word; j++) {
                ckh_u8 *plane = tile + j * kTileWords;
                Steps::join(stored + j * count + first / 8, count / 8, 8, size / 8, plane);
                Steps::transpose(plane, size / 8);
            }
            Steps::join(tile, kTileWords, word, size, words + first * word);
        }
    }
};

template <class Steps>
struct SparseWords {
    static std::size_t mark(const ckh_u8 *words, std::size_t word, std::size_t count,
                            ckh_u8 *bitmap) {
        switch (word) {
            case 1: return mark_words<1>(words, 1, count, bitmap);
            case 2: return mark_words<2>(words, 2, count, bitmap);
            case 4: return mark_words<4>(words, 4, count, bitmap);
            case 8: return mark_words<8>(words, 8, count, bitmap);
            default: return mark_words<0>(words, word, count, bitmap);
        }
    }

    // `out` holds the bitmap and every word: enough whatever the words are. Returns the bytes
    // used: the bitmap, then the words that are not zero in planes.
    static std::size_t apply(const ckh_u8 *words, std::size_t word, std::size_t count,
                             ckh_u8 *out) {
        ckh_u8 tile[kWordMax * kTileWords];
        const std::size_t bitmap_bytes = (count + 7) / 8;
        const std::size_t kept = mark(words, word, count, out);
        ckh_u8 *planes = out + bitmap_bytes;
        std::size_t held = 0, done = 0;
        for (std::size_t group = 0; group < bitmap_bytes; group++) {
            for (unsigned bits = out[group], i = 0; bits != 0; bits >>= 1, i++) {
                if ((bits & 1) == 0) continue;
                std::memcpy(tile + held * word, words + (8 * group + i) * word, word);
                if (++held == kTileWords) {
                    Steps::split(tile, word, held, planes + done, kept);
                    done += held;
                    held = 0;
                }
            }
        }
        if (held != 0) Steps::split(tile, word, held, planes + done, kept);
        return bitmap_bytes + kept * word;
    }

    // False if the bitmap does not belong to `count` words of which `size` bytes are stored.
    static bool undo(const ckh_u8 *stored, std::size_t size, std::size_t word, std::size_t count,
                     ckh_u8 *words) {
        ckh_u8 tile[kWordMax * kTileWords];
        const std::size_t bitmap_bytes = (count + 7) / 8;
        if (size < bitmap_bytes) return false;
        if (count % 8 != 0 && stored[bitmap_bytes - 1] >> count % 8 != 0) return false;
        const std::size_t kept = count_bits(stored, bitmap_bytes);
        // No overflow: there are at most `count` marks, and `count` words fit into memory.
        if (size - bitmap_bytes != kept * word) return false;
        if (count != 0) std::memset(words, 0, count * word);
        const ckh_u8 *planes = stored + bitmap_bytes;
        std::size_t held = 0, used = 0, done = 0;
        for (std::size_t group = 0; group < bitmap_bytes; group++) {
            for (unsigned bits = stored[group], i = 0; bits != 0; bits >>= 1, i++) {
                if ((bits & 1) == 0) continue;
                if (used == held) {
                    done += held;
                    held = kept - done < kTileWords ? kept - done : kTileWords;
                    used = 0;
                    if (held == 0) return false;  // Somebody wrote to the bitmap meanwhile.
                    Steps::join(planes + done, kept, word, held, tile);
                }
                std::memcpy(words + (8 * group + i) * word, tile + used * word, word);
                used++;
            }
        }
        return true;
    }
};

// The most bytes that a filter makes of `size`.
static inline std::size_t filter_max_bytes(unsigned filter, std::size_t word, std::size_t size) {
    return filter == kWords ? size + (size / word + 7) / 8 : size;
}

// Filters `size` bytes into `out`, which has room for filter_max_bytes() and lies apart from
// them. Returns how many it wrote. What is left behind the last word, or the last group of eight,
// goes to the end unchanged.
template <class Steps>
static std::size_t apply_filter(unsigned filter, std::size_t word, const ckh_u8 *plain,
                                std::size_t size, ckh_u8 *out) {
    if (size == 0) return 0;
    std::size_t words = size / word;
    std::size_t written = 0;
    switch (filter) {
        case kShuffle:
            Steps::split(plain, word, words, out, words);
            written = words * word;
            break;
        case kBitShuffle:
            words = BitShuffle<Steps>::words_of(size, word);
            BitShuffle<Steps>::apply(plain, word, words, out);
            written = words * word;
            break;
        case kWords: written = SparseWords<Steps>::apply(plain, word, words, out); break;
        default: words = 0;
    }
    const std::size_t rest = size - words * word;
    if (rest != 0) std::memcpy(out + written, plain + words * word, rest);
    return written + rest;
}

// The opposite, into exactly `size` bytes. False if that many cannot come of the stored ones.
template <class Steps>
static bool undo_filter(unsigned filter, std::size_t word, const ckh_u8 *stored,
                        std::size_t stored_size, ckh_u8 *plain, std::size_t size) {
    if (filter != kWords && stored_size != size) return false;
    if (size == 0) return stored_size == 0;
    std::size_t words = size / word;
    switch (filter) {
        case kShuffle: Steps::join(stored, words, word, words, plain); break;
        case kBitShuffle:
            words = BitShuffle<Steps>::words_of(size, word);
            BitShuffle<Steps>::undo(stored, word, words, plain);
            break;
        case kWords:
            if (stored_size < size - words * word ||
                !SparseWords<Steps>::undo(stored, stored_size - (size - words * word), word,
                                          words, plain)) {
                return false;
            }
            break;
        default: words = 0;
    }
    const std::size_t rest = size - words * word;
    if (rest != 0) std::memcpy(plain + words * word, stored + stored_size - rest, rest);
    return true;
}

struct FilterSteps {
    std::size_t (*apply)(unsigned, std::size_t, const ckh_u8 *, std::size_t, ckh_u8 *);
    bool (*undo)(unsigned, std::size_t, const ckh_u8 *, std::size_t, ckh_u8 *, std::size_t);
};

// Vectors or none; `name` is that of a Variant. AVX-512 gains nothing over AVX2 here: the memory
// is the limit.
static inline FilterSteps filter_steps(const char *name) {
#if defined(CKH_X86)
    if (std::strcmp(name, "scalar") != 0) {
        return {apply_filter<Avx2Steps>, undo_filter<Avx2Steps>};
    }
#endif
    (void)name;
    return {apply_filter<PortableSteps>, undo_filter<PortableSteps>};
}

}  // namespace ckh
