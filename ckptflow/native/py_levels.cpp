// Patterns of checkpoints, evaluated and simulated, as Python calls it.
//
// Levels come as rows of doubles: rate, blocked, latency, interference, recovery, escalation,
// second_loss, in_flight. ckptflow.policy.multilevel has said what is wrong with them; here they
// are only refused.
#include "python.hpp"

#include "renewal.hpp"
#include "simulate.hpp"

#include <new>

namespace {

using namespace core;

constexpr std::size_t kLevelColumns = 8;

const double *doubles(const Buffer &buffer) { return reinterpret_cast<const double *>(buffer.u8()); }

// Whether a number is at least 0 and finite, which NaN is not.
bool is_amount(double value) { return value >= 0 && value < levels::kNever; }

bool read_levels(const Buffer &rows, levels::Pattern *pattern) {
    const std::size_t row_bytes = kLevelColumns * sizeof(double);
    const std::size_t count = rows.bytes() / row_bytes;
    if (count == 0 || count > levels::kMax || !rows.holds_u64(count * kLevelColumns)) return false;
    pattern->count = static_cast<int>(count);
    const double *row = doubles(rows);
    for (int at = 0; at < pattern->count; at++, row += kLevelColumns) {
        for (std::size_t column = 0; column < kLevelColumns; column++) {
            if (!is_amount(row[column])) return false;
        }
        if (row[5] > 1 || row[6] > 1 || row[7] < 1 || row[7] > 1e6) return false;
        pattern->level[at] = {row[0], row[1], row[2], row[3], row[4], row[5], row[6],
                              static_cast<std::int64_t>(row[7]), 1, 0};
    }
    return true;
}

// Counts of a pattern that can be worked with: 1, then each a multiple of the one before.
bool read_every(const std::int64_t *every, levels::Pattern *pattern) {
    for (int at = 0; at < pattern->count; at++) {
        const std::int64_t before = at ? every[at - 1] : 1;
        if (every[at] < 1 || every[at] > levels::kPositionsMax || every[at] % before) return false;
        if (at == 0 && every[at] != 1) return false;
        pattern->level[at].every = every[at];
    }
    return true;
}

PyObject *pattern_efficiencies(PyObject *, PyObject *args) {
    Buffer rows, intervals, every, out;
    if (!PyArg_ParseTuple(args, "O&O&O&O&", Buffer::read, &rows, Buffer::read, &intervals,
                          Buffer::read, &every, Buffer::write, &out)) {
        return nullptr;
    }
    levels::Pattern pattern;
    if (!read_levels(rows, &pattern)) return refuse("no such levels");
    const std::size_t count = intervals.bytes() / sizeof(double);
    const auto width = static_cast<std::size_t>(pattern.count);
    if (!intervals.holds_u64(count) || !out.holds_u64(count) || !every.holds_u64(count * width)) {
        return refuse("arrays of different lengths");
    }
    bool known = true, has_memory = true;
    Py_BEGIN_ALLOW_THREADS;
    try {
        const double *interval = doubles(intervals);
        auto *result = reinterpret_cast<double *>(out.u8());
        for (std::size_t at = 0; at < count && known; at++) {
            known = read_every(every.i64() + at * width, &pattern) && interval[at] > 0 &&
                    is_amount(interval[at]);
            pattern.interval = interval[at];
            if (known) result[at] = pattern.prepare() ? levels::efficiency(pattern) : 0.0;
        }
    } catch (const std::bad_alloc &) {
        has_memory = false;
    }
    Py_END_ALLOW_THREADS;
    if (!has_memory) return PyErr_NoMemory();
    if (!known) return refuse("no such pattern");
    Py_RETURN_NONE;
}

constexpr std::size_t kLawColumns = 5, kAroundColumns = 11;

// Laws come as rows: scale, shape, where times begin and end in `times`, and the place of the level
// that these failures need; the last row is that of preemptions. Returns how many there are besides
// that, or -1.
int read_laws(const Buffer &rows, const Buffer &times, int level_count, levels::Law *laws) {
    const std::size_t count = rows.bytes() / (kLawColumns * sizeof(double));
    const std::size_t total = times.bytes() / sizeof(double);
    if (count < 1 || count > levels::kMax + 1 || !rows.holds_u64(count * kLawColumns) ||
        !times.holds_u64(total)) {
        return -1;
    }
    const double *row = doubles(rows);
    for (std::size_t at = 0; at < count; at++, row += kLawColumns) {
        if (!(is_amount(row[0]) && row[1] > 0 && row[4] >= 0 && row[4] < level_count)) return -1;
        if (!(row[2] >= 0 && row[2] <= row[3] && row[3] <= static_cast<double>(total))) return -1;
        laws[at].scale = row[0];
        laws[at].shape = row[1];
        laws[at].klass = static_cast<int>(row[4]);
        const auto begin = static_cast<std::size_t>(row[2]), end = static_cast<std::size_t>(row[3]);
        if (end > begin) {
            laws[at].times = doubles(times) + begin;
            laws[at].time_count = end - begin;
        }
    }
    return static_cast<int>(count) - 1;
}

bool read_surroundings(const Buffer &buffer, int level_count, levels::Surroundings *around) {
    if (!buffer.holds_u64(kAroundColumns)) return false;
    const double *given = doubles(buffer);
    for (std::size_t at = 0; at < kAroundColumns; at++) {
        const bool is_count = at == 5 || at >= 7;
        if (!(is_amount(given[at]) || (at == 5 && given[at] == -1))) return false;
        if (is_count && given[at] > 1e9) return false;
    }
    *around = {given[0], given[1], given[2], given[3], given[4],
        static_cast<std::int64_t>(given[5]), given[6], static_cast<int>(given[7]),
        static_cast<int>(given[8]), static_cast<std::int64_t>(given[9]), static_cast<int>(given[10])};
    // An allocation that ends before it can be stopped would end again and again at one instant.
    return around->taken_class < level_count &&
           (around->walltime == 0 || around->walltime > around->stop + around->resume);
}

PyObject *simulate_pattern(PyObject *, PyObject *args) {
    Buffer rows, every, laws_in, times, around_in, out;
    double interval;
    unsigned long long seed;
    long long batch, events;
    if (!PyArg_ParseTuple(args, "O&dO&O&O&O&KLLO&", Buffer::read, &rows, &interval, Buffer::read,
                          &every, Buffer::read, &laws_in, Buffer::read, &times, Buffer::read,
                          &around_in, &seed, &batch, &events, Buffer::write, &out)) {
        return nullptr;
    }
    levels::Pattern pattern;
    levels::Law laws[levels::kMax + 1];
    levels::Surroundings around;
    if (!read_levels(rows, &pattern)) return refuse("no such levels");
    if (!every.holds_u64(static_cast<std::size_t>(pattern.count)) ||
        !read_every(every.i64(), &pattern) || !(interval > 0 && is_amount(interval)) ||
        batch < 1 || batch > 1000000000000) {
        return refuse("no such pattern");
    }
    const int law_count = read_laws(laws_in, times, pattern.count, laws);
    if (law_count < 0) return refuse("no such laws");
    if (!read_surroundings(around_in, pattern.count, &around)) return refuse("no such surroundings");
    const std::size_t count = out.bytes() / sizeof(levels::Account);
    if (!out.holds_u64(count * levels::kAccountColumns)) return refuse("no room for whole accounts");
    pattern.interval = interval;
    long done = 0;
    bool has_memory = true;
    Py_BEGIN_ALLOW_THREADS;
    try {
        if (pattern.prepare()) {
            levels::Simulation simulation(pattern, laws, law_count, laws[law_count], around, seed);
            auto *account = reinterpret_cast<levels::Account *>(out.u8());
            for (std::size_t at = 0; at < count; at++, done++) {
                if (!simulation.advance(batch, events, account + at)) break;
            }
        } else {
            done = -1;
        }
    } catch (const std::bad_alloc &) {
        has_memory = false;
    }
    Py_END_ALLOW_THREADS;
    return has_memory ? PyLong_FromLong(done) : PyErr_NoMemory();
}

PyMethodDef methods[] = {
    {"pattern_efficiencies", pattern_efficiencies, METH_VARARGS,
     "Expected efficiency of each pattern, exactly."},
    {"simulate_pattern", simulate_pattern, METH_VARARGS,
     "Simulate a pattern; one account for each batch of positions."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int core::add_levels(PyObject *module) { return PyModule_AddFunctions(module, methods); }
