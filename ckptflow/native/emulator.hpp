// Runs CUDA kernels on the host, unmodified: for tests on machines without a GPU.
//
// Include this, then the .cu file, and compile as C++17. Each thread of a block is a fiber with
// a stack of its own; barriers, shuffles and ballots make fibers wait for each other as on the
// device, blocks are shared out over threads of the host, and atomics are real. What a block has
// in shared memory belongs to the host thread that runs it.
//
// With a seed, warps are held up at random, and fibers change places and give way at random at
// every barrier and atomic; an odd seed also starts the last block first. So code that depends on
// an order shows it. A barrier that some threads never
// reach ends the launch with an error. Not modelled: the weak order of memory, and lock-step
// within a warp, on which no kernel may rely anyway.
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static thread_local

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

namespace emulator {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kGuardBytes = 64 * 1024;  // whole pages, of any size of pages

struct Index {
    unsigned x;
};

struct Fiber {
    ucontext_t start;
    jmp_buf state;
    Index thread;
    bool started, done;
};

struct Warp {
    uint64_t value[kWarp];
    unsigned arrived, generation;
};

// Stacks for the fibers of a block. They are kept for the next launch, since pages that were never
// touched cost more than the fibers; by their size, since all libraries of a process that include
// this share what is kept, and their blocks may have different numbers of threads. Nothing can be
// read or written right before and behind them.
class Stacks {
  public:
    explicit Stacks(size_t bytes) : bytes_(bytes) {
        const std::lock_guard<std::mutex> lock(mutex());
        std::vector<char *> &same = kept()[bytes_];
        if (!same.empty()) {
            start_ = same.back();
            same.pop_back();
            return;
        }
        void *memory = mmap(nullptr, bytes_ + 2 * kGuardBytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return;
        char *start = static_cast<char *>(memory) + kGuardBytes;
        if (!mprotect(start, bytes_, PROT_READ | PROT_WRITE)) start_ = start;
    }
    ~Stacks() {
        const std::lock_guard<std::mutex> lock(mutex());
        if (start_) kept()[bytes_].push_back(start_);
    }
    Stacks(const Stacks &) = delete;
    Stacks &operator=(const Stacks &) = delete;

    char *start() const { return start_; }

  private:
    static std::mutex &mutex() {
        static std::mutex one;
        return one;
    }
    static std::map<size_t, std::vector<char *>> &kept() {
        static std::map<size_t, std::vector<char *>> all;
        return all;
    }

    size_t bytes_;
    char *start_ = nullptr;
};

// One block while it runs, and everything that the next one can use again.
struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Stacks stacks;
    const std::function<void()> *body = nullptr;
    Index block, threads, blocks;
    unsigned live, arrived, generation;
    bool moved;  // some fiber got on since the scheduler last looked
    jmp_buf scheduler;
    uint64_t random;  // 0: no shaking

    Block(unsigned block_count, unsigned thread_count)
        : fibers(thread_count), warps((thread_count + kWarp - 1) / kWarp),
          stacks(thread_count * kStackBytes), block{0}, threads{thread_count},
          blocks{block_count} {}

    uint64_t next_random() {
        random ^= random << 13;
        random ^= random >> 7;
        return random ^= random << 17;
    }
};

inline thread_local Block *running = nullptr;
inline thread_local Fiber *fiber = nullptr;

inline void give_way() {
    if (!_setjmp(fiber->state)) _longjmp(running->scheduler, 1);
}

inline void maybe_give_way() {
    if (running->random && running->next_random() & 1) {
        running->moved = true;
        give_way();
    }
}

inline void fiber_main() {
    (*running->body)();
    fiber->done = true;
    running->live--;
    running->moved = true;
    _longjmp(running->scheduler, 1);
}

inline void resume(Block &b, unsigned number) {
    fiber = &b.fibers[number];
    if (fiber->done || _setjmp(b.scheduler)) return;
    if (fiber->started) _longjmp(fiber->state, 1);
    fiber->started = b.moved = true;
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = b.stacks.start() + number * kStackBytes;
    fiber->start.uc_stack.ss_size = kStackBytes;
    fiber->start.uc_link = nullptr;
    makecontext(&fiber->start, fiber_main, 0);
    setcontext(&fiber->start);
}

// Returns false if the threads wait for each other for ever.
inline bool run_block(Block &b, unsigned number) {
    const unsigned count = b.threads.x;
    running = &b;
    b.block.x = number;
    b.live = count;
    b.arrived = b.generation = 0;
    for (Warp &warp : b.warps) warp.arrived = warp.generation = 0;
    for (unsigned i = 0; i < count; i++) {
        b.fibers[i].thread.x = i;
        b.fibers[i].started = b.fibers[i].done = false;
    }
    bool stuck = false;
    uint64_t asleep = 0;  // warps, one a bit; the same ones for a while, so that others get far
    while (b.live) {
        b.moved = false;
        if (b.random && b.next_random() % 32 == 0) asleep = b.next_random();
        if (stuck) asleep = 0;
        const unsigned turn = b.random ? b.next_random() % count : 0;
        for (unsigned i = 0; i < count; i++) {
            const unsigned number = i ^ (turn % kWarp);
            if (!(asleep >> (number / kWarp % 64) & 1)) resume(b, number);
        }
        if (!b.moved && stuck) return false;
        stuck = !b.moved;
    }
    return true;
}

inline bool launch(unsigned blocks, unsigned threads, unsigned workers, uint64_t seed,
                   const std::function<void()> &body) {
    std::atomic<unsigned> next{0};
    std::atomic<bool> fine{true};
    auto work = [&](unsigned worker) {
        Block block(blocks, threads);
        block.body = &body;
        block.random = seed ? seed * 0x9E3779B97F4A7C15ull + worker + 1 : 0;
        if (!block.stacks.start()) fine = false;
        for (unsigned i; fine && (i = next++) < blocks;) {
            if (!run_block(block, seed % 2 ? blocks - 1 - i : i)) fine = false;
        }
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < workers && i < blocks; i++) others.emplace_back(work, i);
    work(0);
    for (std::thread &other : others) other.join();
    return fine;
}

inline void block_barrier() {
    Block &b = *running;
    maybe_give_way();
    const unsigned generation = b.generation;
    b.moved = true;
    if (++b.arrived == b.threads.x) {
        b.arrived = 0;
        b.generation++;
    }
    while (b.generation == generation) give_way();
}

inline void warp_barrier() {
    Warp &warp = running->warps[fiber->thread.x / kWarp];
    const unsigned generation = warp.generation;
    running->moved = true;
    if (++warp.arrived == kWarp) {
        warp.arrived = 0;
        warp.generation++;
    }
    while (warp.generation == generation) give_way();
}

// What all lanes of the warp gave; the second barrier keeps it until all have looked.
template <class Value, class Look>
inline auto exchange(Value value, Look look) {
    static_assert(sizeof(Value) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
    Warp &warp = running->warps[fiber->thread.x / kWarp];
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    warp.value[fiber->thread.x % kWarp] = bits;
    warp_barrier();
    const auto result = look(warp.value);
    warp_barrier();
    return result;
}

}  // namespace emulator

#define threadIdx (emulator::fiber->thread)
#define blockIdx (emulator::running->block)
#define blockDim (emulator::running->threads)
#define gridDim (emulator::running->blocks)

static inline void __syncthreads() { emulator::block_barrier(); }

template <class Value>
static inline Value __shfl_xor_sync(unsigned, Value value, unsigned mask) {
    const unsigned source = (threadIdx.x % emulator::kWarp) ^ mask;
    return emulator::exchange(value, [source](const uint64_t *values) {
        Value result;
        memcpy(&result, values + source, sizeof result);
        return result;
    });
}

static inline unsigned __ballot_sync(unsigned, int vote) {
    return emulator::exchange(vote != 0, [](const uint64_t *values) {
        unsigned votes = 0;
        for (unsigned i = 0; i < emulator::kWarp; i++) votes |= (unsigned)(values[i] != 0) << i;
        return votes;
    });
}

static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <class Value>
static inline Value __ldcs(const Value *address) {
    return *address;
}

static inline unsigned long long atomicCAS(unsigned long long *address, unsigned long long expected,
                                           unsigned long long value) {
    emulator::maybe_give_way();
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return expected;
}

static inline unsigned long long atomicMin(unsigned long long *address, unsigned long long value) {
    emulator::maybe_give_way();
    unsigned long long seen = __atomic_load_n(address, __ATOMIC_SEQ_CST);
    while (value < seen && !__atomic_compare_exchange_n(address, &seen, value, false,
                                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return seen;
}
