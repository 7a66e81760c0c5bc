// The kernels of ckptflow/native/kernels.cu as a library for the host, called by name.
// emulated.py builds and loads it.
#include "emulator.hpp"

#include "kernels.cu"

#include <string>
#include <utility>

namespace {

template <class Value>
Value from_word(uint64_t word) {
    static_assert(sizeof(Value) == sizeof word, "every parameter has 64 bits");
    Value value;
    memcpy(&value, &word, sizeof value);
    return value;
}

template <class... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), const uint64_t *words, std::index_sequence<I...>) {
    kernel(from_word<Parameters>(words[I])...);
}

template <class... Parameters>
std::function<void()> bind(void (*kernel)(Parameters...), const uint64_t *words, size_t count) {
    if (count != sizeof...(Parameters)) return nullptr;
    return [=] { call(kernel, words, std::index_sequence_for<Parameters...>{}); };
}

std::function<void()> find(const std::string &name, const uint64_t *words, size_t count) {
#define KERNEL(kernel) \
    if (name == #kernel) return bind(kernel, words, count);
#include "kernel_names.inc"
#undef KERNEL
    return nullptr;
}

}  // namespace

// Returns 0, 1 if threads wait for each other for ever, or 2 if there is no such kernel.
extern "C" int emulate(const char *name, unsigned blocks, unsigned workers, uint64_t seed,
                       const uint64_t *words, size_t count) {
    const std::function<void()> body = find(name, words, count);
    if (!body) return 2;
    return emulator::launch(blocks, CK_THREADS, workers, seed, body) ? 0 : 1;
}
