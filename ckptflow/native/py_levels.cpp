// Patterns of checkpoints, evaluated and simulated, as Python calls it.
//
// Levels come as rows of doubles: rate, blocked, latency, interference, recovery, escalation,
// second_loss, in_flight. ckptflow.policy.multilevel has checked them.
#include "python.hpp"

#include "renewal.hpp"
#include "simulate.hpp"

namespace {

using namespace core;

constexpr std::size_t kLevelColumns = 8;

bool read_levels(const Buffer &rows, levels::Pattern *pattern) {
    const std::size_t row_bytes = kLevelColumns * sizeof(double);
    if (rows.bytes() == 0 || rows.bytes() % row_bytes || rows.bytes() / row_bytes > levels::kMax) {
        return false;
    }
    pattern->count = static_cast<int>(rows.bytes() / row_bytes);
    const auto *row = reinterpret_cast<const double *>(rows.u8());
    for (int at = 0; at < pattern->count; at++, row += kLevelColumns) {
        if (!(row[7] >= 1 && row[7] <= 1e6)) return false;
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
    if (out.bytes() != count * sizeof(double) || every.bytes() != count * width * 8) {
        return refuse("arrays of different lengths");
    }
    bool known = true;
    Py_BEGIN_ALLOW_THREADS;
    const auto *interval = reinterpret_cast<const double *>(intervals.u8());
    auto *result = reinterpret_cast<double *>(out.u8());
    for (std::size_t at = 0; at < count && known; at++) {
        known = read_every(every.i64() + at * width, &pattern) && interval[at] > 0;
        pattern.interval = interval[at];
        if (known) result[at] = pattern.prepare() ? levels::efficiency(pattern) : 0.0;
    }
    Py_END_ALLOW_THREADS;
    if (!known) return refuse("no such pattern");
    Py_RETURN_NONE;
}

// Laws come as rows: scale, shape, and where times begin and end in `times`; the last row is that
// of preemptions.
bool read_laws(const Buffer &rows, const Buffer &times, int count, levels::Law *laws) {
    const auto *row = reinterpret_cast<const double *>(rows.u8());
    const double total = static_cast<double>(times.bytes() / sizeof(double));
    if (rows.bytes() != static_cast<std::size_t>(count + 1) * 4 * sizeof(double)) return false;
    for (int at = 0; at <= count; at++, row += 4) {
        laws[at].scale = row[0];
        laws[at].shape = row[1];
        if (!(row[2] >= 0 && row[2] <= row[3] && row[3] <= total && row[1] > 0)) return false;
        if (row[3] > row[2]) {
            laws[at].times = reinterpret_cast<const double *>(times.u8()) + static_cast<std::size_t>(row[2]);
            laws[at].time_count = static_cast<std::size_t>(row[3] - row[2]);
        }
    }
    return true;
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
    if (!read_levels(rows, &pattern)) return refuse("no such levels");
    if (every.bytes() != static_cast<std::size_t>(pattern.count) * 8 ||
        !read_every(every.i64(), &pattern) || !(interval > 0) || batch < 1) {
        return refuse("no such pattern");
    }
    if (!read_laws(laws_in, times, pattern.count, laws)) return refuse("no such laws");
    const auto *given = reinterpret_cast<const double *>(around_in.u8());
    if (around_in.bytes() != 10 * sizeof(double)) return refuse("no such surroundings");
    pattern.interval = interval;
    if (!pattern.prepare()) return PyLong_FromLong(-1);
    const levels::Surroundings around{given[0], given[1], given[2], given[3], given[4],
        static_cast<std::int64_t>(given[5]), given[6], static_cast<int>(given[7]),
        static_cast<int>(given[8]), static_cast<std::int64_t>(given[9])};
    const std::size_t count = out.bytes() / sizeof(levels::Account);
    long done = 0;
    Py_BEGIN_ALLOW_THREADS;
    levels::Simulation simulation(pattern, laws, laws[pattern.count], around, seed);
    auto *account = reinterpret_cast<levels::Account *>(out.u8());
    for (std::size_t at = 0; at < count; at++, done++) {
        if (!simulation.advance(batch, events, account + at)) break;
    }
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(done);
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
