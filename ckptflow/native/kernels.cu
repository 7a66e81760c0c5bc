// Find on the GPU what changed in a region: the kernels, in the order in which they run.
//
// The results are those of the CPU, bit for bit, whatever the device and the number of blocks:
// tests/gpu_emulated runs this very source on the host, tests/gpu on a device. ckptflow/gpu/plan.py
// launches it. Every parameter is a pointer or an unsigned 64-bit number, and a name means the
// same thing in all kernels:
//
//   data, length          the region; it has chunks and cells, the last ones may be short
//   keys                  ckh128_keys.inc
//   old_chunks, old_cells digests of the last commit, with their counts
//   new_chunks            digests of all chunks now; changed[i] tells whether chunk i has a new one
//   *_counts              how many each block found: chunks, cells, first occurrences, runs
//   chunk_list            changed chunks, rising
//   first_cell            changed chunks have all their cells numbered from here on, without gaps
//                         for unchanged chunks. Where cells are chunks, all chunks are numbered.
//   digests, kinds, refs  by that number
//   list                  numbers of the changed cells, rising
//   slots, slot_count     the first-occurrence table; log, log_capacity: digests by id, a ring
//   first_id, next_id     oldest id in the log, and the first one that no cell has yet
//
// CK_CHUNK and CK_CELL, in bytes, are fixed when this is compiled.
#include "gpu_table.cuh"

#ifndef CK_CHUNK
#define CK_CHUNK 4096
#endif
#ifndef CK_CELL
#define CK_CELL CK_CHUNK
#endif
#if CK_CELL < 16 || CK_CELL % 8 || CK_CHUNK % CK_CELL || CK_CHUNK > 1048576
#error "cells divide chunks of at most 1 MiB and are multiples of 8 bytes, at least 16"
#endif
// Units of 16 bytes. Other sizes, and regions of other alignment, take the kernels named _any.
#define CK_CHUNKS_OF_UNITS (CK_CHUNK % 16 == 0)
#define CK_CELLS_OF_UNITS (CK_CELL % 16 == 0)
#define CK_CELLS_ARE_CHUNKS (CK_CELL == CK_CHUNK)

#define CK_KERNEL extern "C" __global__ void __launch_bounds__(CK_THREADS)

#if !CK_CELLS_ARE_CHUNKS
static constexpr unsigned CK_CELLS_PER_CHUNK = CK_CHUNK / CK_CELL;
#endif

// How a cell gets its bytes back.
static constexpr ckh_u8 CK_SAME = 0;   // unchanged
static constexpr ckh_u8 CK_NEW = 1;    // from this checkpoint; until resolved: any but a fill
static constexpr ckh_u8 CK_FILL = 2;   // by repeating eight bytes; ref: these
static constexpr ckh_u8 CK_KNOWN = 3;  // from where the id in ref first occurred
static constexpr ckh_u8 CK_AGAIN = 4;  // the same, but it is pending; ref: number of that cell

__device__ __forceinline__ ckh_u64 ck_min(ckh_u64 a, ckh_u64 b) { return a < b ? a : b; }

__device__ __forceinline__ ckh_u64 ck_rest(ckh_u64 length, ckh_u64 start) {
    return length > start ? length - start : 0;
}

// Where the cell of this number is in the region.
__device__ __forceinline__ ckh_u64 ck_cell_index(ckh_u64 cell, ckh_u64 first_cell,
                                                 const ckh_u32 *chunk_list) {
    const ckh_u64 nth = cell - first_cell;
#if CK_CELLS_ARE_CHUNKS
    (void)chunk_list;
    return nth;
#else
    return (ckh_u64)chunk_list[nth / CK_CELLS_PER_CHUNK] * CK_CELLS_PER_CHUNK +
           nth % CK_CELLS_PER_CHUNK;
#endif
}

// ---- 1. Digest all chunks and compare -------------------------------------------------------

struct ck_chunks {
    const ckh128_t *old_chunks;
    ckh_u64 old_count;
    ckh128_t *new_chunks;
    ckh_u8 *changed;

    // Returns 1 if the chunk has changed.
    __device__ __forceinline__ unsigned put(ckh_u64 chunk, ckh128_t digest) const {
        const bool differs = chunk >= old_count || !ck_equal(old_chunks[chunk], digest);
        new_chunks[chunk] = digest;
        changed[chunk] = differs;
        return differs;
    }
};

#if CK_CHUNKS_OF_UNITS
CK_KERNEL ck_scan_chunks(const ckh_u8 *__restrict__ data, ckh_u64 length,
                         const uint4 *__restrict__ keys, const ckh128_t *__restrict__ old_chunks,
                         ckh_u64 old_chunk_count, ckh128_t *__restrict__ new_chunks,
                         ckh_u8 *__restrict__ changed, ckh_u64 *__restrict__ chunk_counts) {
    using shape = ck_shape<CK_CHUNK>;
    constexpr unsigned groups = CK_THREADS / shape::lanes;
    __shared__ uint4 shared_keys[CK_KEY_UNITS];
    __shared__ ckh_u64 level1[shape::level1_keys];
    ck_load_keys(shared_keys, keys);
    ck_make_level1_keys(level1, shape::level1_keys);
    __syncthreads();

    const ck_chunks chunks = {old_chunks, old_chunk_count, new_chunks, changed};
    const ckh_u64 whole = length / CK_CHUNK;
    const ck_range part = ck_part(whole + (length % CK_CHUNK != 0));
    const ckh_u64 end = ck_min(part.end, whole);
    const unsigned lane = threadIdx.x % shape::lanes;
    ckh_u64 count = 0;
    for (ckh_u64 first = part.begin; first < end; first += groups * CK_ILP) {
        ck_message message[CK_ILP];
        ckh128_t digest[CK_ILP];
        const ckh_u64 mine = first + threadIdx.x / shape::lanes;
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) {
            const ckh_u64 chunk = mine + j * groups;
            message[j].units = chunk < end ? (const uint4 *)(data + chunk * CK_CHUNK) : nullptr;
        }
        ck_digest_lanes<CK_CHUNK, false>(message, shared_keys, level1, digest);
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) {
            if (lane == 0 && message[j].units) count += chunks.put(mine + j * groups, digest[j]);
        }
    }
    if (part.begin <= whole && whole < part.end && threadIdx.x < CK_WARP) {
        const ckh_u64 start = whole * CK_CHUNK;
        const ck_found found = ck_digest_warp(data + start, length - start, shared_keys);
        if (threadIdx.x == 0) count += chunks.put(whole, found.digest);
    }
    ck_put_count(chunk_counts, count);
}
#endif

CK_KERNEL ck_scan_chunks_any(const ckh_u8 *__restrict__ data, ckh_u64 length,
                             const uint4 *__restrict__ keys,
                             const ckh128_t *__restrict__ old_chunks, ckh_u64 old_chunk_count,
                             ckh128_t *__restrict__ new_chunks, ckh_u8 *__restrict__ changed,
                             ckh_u64 *__restrict__ chunk_counts) {
    __shared__ uint4 shared_keys[CK_KEY_UNITS];
    ck_load_keys(shared_keys, keys);
    __syncthreads();

    const ck_chunks chunks = {old_chunks, old_chunk_count, new_chunks, changed};
    const ck_range part = ck_part(length / CK_CHUNK + (length % CK_CHUNK != 0));
    ckh_u64 count = 0;
    for (ckh_u64 chunk = part.begin + threadIdx.x / CK_WARP; chunk < part.end; chunk += CK_WARPS) {
        const ckh_u64 start = chunk * CK_CHUNK;
        const ck_found found =
            ck_digest_warp(data + start, ck_min(length - start, CK_CHUNK), shared_keys);
        if (threadIdx.x % CK_WARP == 0) count += chunks.put(chunk, found.digest);
    }
    ck_put_count(chunk_counts, count);
}

// ---- 2. List the changed chunks -------------------------------------------------------------

// listed[k] = first_number + the k-th changed chunk.
CK_KERNEL ck_list_chunks(const ckh_u8 *__restrict__ changed, ckh_u64 length,
                         const ckh_u64 *__restrict__ chunk_counts, ckh_u32 *__restrict__ listed,
                         ckh_u64 first_number) {
    const ck_range part = ck_part(length / CK_CHUNK + (length % CK_CHUNK != 0));
    ckh_u64 at = ck_before(chunk_counts);
    for (ckh_u64 first = part.begin; first < part.end; first += CK_THREADS) {
        const ckh_u64 chunk = first + threadIdx.x;
        const bool found = chunk < part.end && changed[chunk];
        unsigned sum;
        const unsigned rank = ck_rank(found, sum);
        if (found) listed[at + rank] = (ckh_u32)(first_number + chunk);
        at += sum;
    }
}

// ---- 3. Digest the cells of changed chunks and compare; find fills --------------------------

#if CK_CELLS_ARE_CHUNKS

// The digests are known; a warp looks at a cell and leaves it at the first difference.
CK_KERNEL ck_find_fills(const ckh_u8 *__restrict__ data, ckh_u64 length, ckh_u64 first_cell,
                        const ckh_u32 *__restrict__ list, const ckh_u64 *__restrict__ item_counts,
                        ckh_u8 *__restrict__ kinds, ckh_u64 *__restrict__ refs) {
    const ck_range part = ck_part(ck_total(item_counts));
    const unsigned lane = threadIdx.x % CK_WARP;
    for (ckh_u64 i = part.begin + threadIdx.x / CK_WARP; i < part.end; i += CK_WARPS) {
        const ckh_u64 cell = list[i], start = (cell - first_cell) * CK_CELL;
        const ckh_u64 size = ck_min(length - start, CK_CELL);
        const ckh_u8 *bytes = data + start;
        const ckh_u64 pattern = ck_load_pair(bytes, size);
        bool is_fill = size % 8 == 0;
        for (ckh_u64 at = 0; is_fill && at < size; at += 8 * CK_WARP) {
            const ckh_u64 mine = at + 8 * lane;
            const bool unlike = mine < size && ck_load_pair(bytes + mine, 8) != pattern;
            is_fill = __ballot_sync(CK_ALL_LANES, unlike) == 0;
        }
        if (lane == 0) {
            kinds[cell] = is_fill ? CK_FILL : CK_NEW;
            refs[cell] = pattern;
        }
    }
}

#else

struct ck_cells {
    ckh_u64 first_cell;
    const ckh128_t *old_cells;
    ckh_u64 old_count;
    ckh128_t *digests;
    ckh_u8 *kinds;

    // Returns 1 if the nth cell, at `index` in the region, has changed.
    __device__ __forceinline__ unsigned put(ckh_u64 nth, ckh_u64 index, ckh128_t digest,
                                            bool is_fill) const {
        const bool same = index < old_count && ck_equal(old_cells[index], digest);
        digests[first_cell + nth] = digest;
        kinds[first_cell + nth] = same ? CK_SAME : is_fill ? CK_FILL : CK_NEW;
        return !same;
    }

    // For a cell beyond the end of the region, in its last chunk.
    __device__ __forceinline__ void put_none(ckh_u64 nth) const { kinds[first_cell + nth] = CK_SAME; }
};

#if CK_CELLS_OF_UNITS
CK_KERNEL ck_scan_cells(const ckh_u8 *__restrict__ data, ckh_u64 length,
                        const uint4 *__restrict__ keys, const ckh_u32 *__restrict__ chunk_list,
                        const ckh_u64 *__restrict__ chunk_counts, ckh_u64 first_cell,
                        const ckh128_t *__restrict__ old_cells, ckh_u64 old_cell_count,
                        ckh128_t *__restrict__ digests, ckh_u8 *__restrict__ kinds,
                        ckh_u64 *__restrict__ cell_counts) {
    using shape = ck_shape<CK_CELL>;
    constexpr unsigned groups = CK_THREADS / shape::lanes;
    __shared__ uint4 shared_keys[CK_KEY_UNITS];
    __shared__ ckh_u64 level1[shape::level1_keys];
    ck_load_keys(shared_keys, keys);
    ck_make_level1_keys(level1, shape::level1_keys);
    const ckh_u64 chunks = ck_total(chunk_counts);  // Its barriers also end the loading of keys.

    const ck_cells cells = {first_cell, old_cells, old_cell_count, digests, kinds};
    const ckh_u64 whole = length / CK_CELL;
    const ck_range part = ck_part(chunks);
    const ckh_u64 end = part.end * CK_CELLS_PER_CHUNK;
    const unsigned lane = threadIdx.x % shape::lanes;
    ckh_u64 count = 0;
    for (ckh_u64 first = part.begin * CK_CELLS_PER_CHUNK; first < end; first += groups * CK_ILP) {
        ck_message message[CK_ILP];
        ckh128_t digest[CK_ILP];
        ckh_u64 index[CK_ILP];
        const ckh_u64 mine = first + threadIdx.x / shape::lanes;
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) {
            const ckh_u64 nth = mine + j * groups;
            index[j] = nth < end ? ck_cell_index(nth, 0, chunk_list) : whole;
            message[j].units =
                index[j] < whole ? (const uint4 *)(data + index[j] * CK_CELL) : nullptr;
        }
        ck_digest_lanes<CK_CELL, true>(message, shared_keys, level1, digest);
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) {
            const ckh_u64 nth = mine + j * groups;
            if (lane != 0 || nth >= end) continue;
            if (message[j].units) {
                count += cells.put(nth, index[j], digest[j], message[j].unlike == 0);
            } else if (index[j] * CK_CELL >= length) {
                cells.put_none(nth);
            }
        }
    }
    // A short last cell is in the last chunk, which is the last of the list if it has changed.
    const ckh_u64 start = whole * CK_CELL;
    if (start < length && part.begin < part.end && part.end == chunks && threadIdx.x < CK_WARP &&
        chunk_list[chunks - 1] == start / CK_CHUNK) {
        const ck_found found = ck_digest_warp(data + start, length - start, shared_keys);
        const ckh_u64 nth = (chunks - 1) * CK_CELLS_PER_CHUNK + whole % CK_CELLS_PER_CHUNK;
        if (threadIdx.x == 0) count += cells.put(nth, whole, found.digest, found.is_fill);
    }
    ck_put_count(cell_counts, count);
}
#endif

CK_KERNEL ck_scan_cells_any(const ckh_u8 *__restrict__ data, ckh_u64 length,
                            const uint4 *__restrict__ keys, const ckh_u32 *__restrict__ chunk_list,
                            const ckh_u64 *__restrict__ chunk_counts, ckh_u64 first_cell,
                            const ckh128_t *__restrict__ old_cells, ckh_u64 old_cell_count,
                            ckh128_t *__restrict__ digests, ckh_u8 *__restrict__ kinds,
                            ckh_u64 *__restrict__ cell_counts) {
    __shared__ uint4 shared_keys[CK_KEY_UNITS];
    ck_load_keys(shared_keys, keys);
    const ckh_u64 chunks = ck_total(chunk_counts);  // Its barriers also end the loading of keys.

    const ck_cells cells = {first_cell, old_cells, old_cell_count, digests, kinds};
    const ck_range part = ck_part(chunks);
    const ckh_u64 begin = part.begin * CK_CELLS_PER_CHUNK, end = part.end * CK_CELLS_PER_CHUNK;
    ckh_u64 count = 0;
    for (ckh_u64 nth = begin + threadIdx.x / CK_WARP; nth < end; nth += CK_WARPS) {
        const ckh_u64 index = ck_cell_index(nth, 0, chunk_list), start = index * CK_CELL;
        const ckh_u64 size = ck_min(ck_rest(length, start), CK_CELL);
        const ck_found found = ck_digest_warp(data + start, size, shared_keys);
        if (threadIdx.x % CK_WARP != 0) continue;
        if (size) {
            count += cells.put(nth, index, found.digest, found.is_fill);
        } else {
            cells.put_none(nth);
        }
    }
    ck_put_count(cell_counts, count);
}

// ---- 4. List the changed cells --------------------------------------------------------------

CK_KERNEL ck_list_cells(const ckh_u8 *__restrict__ data, const ckh_u32 *__restrict__ chunk_list,
                        const ckh_u64 *__restrict__ chunk_counts,
                        const ckh_u64 *__restrict__ cell_counts, ckh_u64 first_cell,
                        const ckh_u8 *__restrict__ kinds, ckh_u64 *__restrict__ refs,
                        ckh_u32 *__restrict__ list) {
    const ck_range part = ck_part(ck_total(chunk_counts));
    const ckh_u64 end = part.end * CK_CELLS_PER_CHUNK;
    ckh_u64 at = ck_before(cell_counts);
    for (ckh_u64 first = part.begin * CK_CELLS_PER_CHUNK; first < end; first += CK_THREADS) {
        const ckh_u64 nth = first + threadIdx.x, cell = first_cell + nth;
        const ckh_u8 kind = nth < end ? kinds[cell] : CK_SAME;
        unsigned sum;
        const unsigned rank = ck_rank(kind != CK_SAME, sum);
        if (kind != CK_SAME) list[at + rank] = (ckh_u32)cell;
        if (kind == CK_FILL) {
            refs[cell] = ck_load_pair(data + ck_cell_index(nth, 0, chunk_list) * CK_CELL, 8);
        }
        at += sum;
    }
}

#endif  // !CK_CELLS_ARE_CHUNKS

// ---- 5. Find first occurrences, and number the new ones -------------------------------------

CK_KERNEL ck_insert(const ckh_u32 *__restrict__ list, const ckh_u64 *__restrict__ item_counts,
                    const ckh128_t *__restrict__ digests, const ckh_u8 *__restrict__ kinds,
                    ckh_u64 *__restrict__ refs, ckh_u64 *slots, ckh_u64 slot_count,
                    const ckh128_t *__restrict__ log) {
    const ck_table table = {slots, slot_count, log, digests};
    const ck_range part = ck_part(ck_total(item_counts));
    for (ckh_u64 i = part.begin + threadIdx.x; i < part.end; i += CK_THREADS) {
        const ckh_u32 cell = list[i];
        if (kinds[cell] == CK_NEW) refs[cell] = ck_find_or_enter(table, digests[cell], cell);
    }
}

CK_KERNEL ck_resolve(const ckh_u32 *__restrict__ list, const ckh_u64 *__restrict__ item_counts,
                     ckh_u8 *__restrict__ kinds, ckh_u64 *__restrict__ refs,
                     const ckh_u64 *__restrict__ slots, ckh_u64 log_capacity, ckh_u64 first_id,
                     ckh_u64 *__restrict__ new_counts) {
    const ck_range part = ck_part(ck_total(item_counts));
    const ckh_u64 first_place = first_id % log_capacity;
    ckh_u64 count = 0;
    for (ckh_u64 i = part.begin + threadIdx.x; i < part.end; i += CK_THREADS) {
        const ckh_u32 cell = list[i];
        if (kinds[cell] != CK_NEW) continue;
        const ckh_u64 entry = slots[refs[cell]], place = ck_place(entry);
        if (!(entry & CK_PENDING)) {
            kinds[cell] = CK_KNOWN;
            refs[cell] = first_id + place - first_place + (place < first_place ? log_capacity : 0);
        } else if (place != cell) {
            kinds[cell] = CK_AGAIN;
            refs[cell] = place;
        } else {
            count++;
        }
    }
    ck_put_count(new_counts, count);
}

CK_KERNEL ck_number(const ckh_u32 *__restrict__ list, const ckh_u64 *__restrict__ item_counts,
                    const ckh_u64 *__restrict__ new_counts, const ckh_u8 *__restrict__ kinds,
                    ckh_u64 *__restrict__ refs, ckh_u64 next_id) {
    const ck_range part = ck_part(ck_total(item_counts));
    ckh_u64 id = next_id + ck_before(new_counts);
    for (ckh_u64 first = part.begin; first < part.end; first += CK_THREADS) {
        const ckh_u64 i = first + threadIdx.x;
        const bool is_new = i < part.end && kinds[list[i]] == CK_NEW;
        unsigned sum;
        const unsigned rank = ck_rank(is_new, sum);
        if (is_new) refs[list[i]] = id + rank;
        id += sum;
    }
}

// ---- 6. to 8. Join cells to runs, hand over, commit -----------------------------------------

#include "gpu_results.cuh"

// ---- The capture of many regions at once ----------------------------------------------------

#include "gpu_capture.cuh"
