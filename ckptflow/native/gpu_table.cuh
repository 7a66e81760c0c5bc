// The first-occurrence table on the GPU: a digest leads to its first cell, in 8 bytes a slot.
//
// kernels.cu includes this. A slot is 0, or from the top: 24 bits of the digest, one bit that
// says "pending", and 39 bits of place + 1. The place is one in the log, or, while pending, the
// number of a cell that is not in the log yet. A digest is looked for from its own slot on,
// until one is empty; slots are never emptied one by one, so a search may run beside inserts.
// Their number is any; the host sees to it that some stay empty.
#pragma once

#include "gpu_order.cuh"

#define CK_PENDING (1ull << 39)
#define CK_PLACE_MASK (CK_PENDING - 1)
#define CK_TAG_SHIFT 40

struct ck_table {
    ckh_u64 *slots;
    ckh_u64 size;
    const ckh128_t *log;      // digests by place
    const ckh128_t *pending;  // digests by number of cell
};

__device__ __forceinline__ bool ck_equal(ckh128_t a, ckh128_t b) {
    return a.lo == b.lo && a.hi == b.hi;
}

__device__ __forceinline__ ckh_u64 ck_entry(ckh128_t digest, ckh_u64 place, ckh_u64 pending) {
    return digest.hi << CK_TAG_SHIFT | pending | (place + 1);
}

__device__ __forceinline__ ckh_u64 ck_place(ckh_u64 entry) { return (entry & CK_PLACE_MASK) - 1; }

__device__ __forceinline__ ckh_u64 ck_home(const ck_table &table, ckh128_t digest) {
    return __umul64hi(digest.lo, table.size);
}

__device__ __forceinline__ ckh_u64 ck_next(const ck_table &table, ckh_u64 slot) {
    return slot + 1 == table.size ? 0 : slot + 1;
}

__device__ __forceinline__ bool ck_entry_is(const ck_table &table, ckh_u64 entry, ckh128_t digest) {
    if (entry >> CK_TAG_SHIFT != (digest.hi & 0xFFFFFF)) return false;
    const ckh128_t *digests = entry & CK_PENDING ? table.pending : table.log;
    return ck_equal(digests[ck_place(entry)], digest);
}

// Enters a pending cell unless the log has its digest; of equal cells the lowest number stays,
// whichever thread came first. Returns the slot, which tells after all inserts whose it is.
__device__ __forceinline__ ckh_u64 ck_find_or_enter(const ck_table &table, ckh128_t digest,
                                                    ckh_u64 cell) {
    const ckh_u64 mine = ck_entry(digest, cell, CK_PENDING);
    for (ckh_u64 slot = ck_home(table, digest);; slot = ck_next(table, slot)) {
        ckh_u64 seen = *(volatile ckh_u64 *)(table.slots + slot);
        if (seen == 0) seen = atomicCAS(table.slots + slot, 0ull, mine);
        if (seen == 0) return slot;
        if (!ck_entry_is(table, seen, digest)) continue;
        // Both have the same tag, so the lower entry is the lower cell. The log is never pending.
        if (seen & CK_PENDING) atomicMin(table.slots + slot, mine);
        return slot;
    }
}

// Enters a digest that is known to be absent.
__device__ __forceinline__ void ck_enter(const ck_table &table, ckh128_t digest, ckh_u64 entry) {
    for (ckh_u64 slot = ck_home(table, digest);; slot = ck_next(table, slot)) {
        if (atomicCAS(table.slots + slot, 0ull, entry) == 0) return;
    }
}

// Replaces a pending entry, which is there, by one for the log.
__device__ __forceinline__ void ck_settle(const ck_table &table, ckh128_t digest, ckh_u64 cell,
                                          ckh_u64 place) {
    const ckh_u64 pending = ck_entry(digest, cell, CK_PENDING);
    for (ckh_u64 slot = ck_home(table, digest);; slot = ck_next(table, slot)) {
        if (*(volatile ckh_u64 *)(table.slots + slot) != pending) continue;
        table.slots[slot] = ck_entry(digest, place, 0);
        return;
    }
}
