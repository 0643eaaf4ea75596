// Probes for CUDA C++ kernels: each stores a stage into a buffer that Python hands over (probes/cuda_cpp.py), and
// compiles to nothing unless WB_PROBES is defined. C++17; include it after CUDA's headers.
//
//   WB_PROBE(stage, value, i, j, ...)                      one element, by the calling thread
//   WB_PROBE_TILE(stage, r, rows, c, cols, value, i, ...)  value at r < rows, c < cols, by all threads of the block
//   WB_PROBE_FRAGMENT(stage, fragment, r, c, i, ...)       an accumulator, by all threads of the warp: WMMA's, or the
//                                                          registers T[4 n] of mma.m16n8 and of wgmma
// i, j, ... are indices in the order of the stage's axes; r and c are names that they and value may use. What of a tile
// or fragment lies beyond the end of the stage is padding, and left out. Another index outside is refused and counted.
#pragma once
#ifndef WB_PROBES
#define WB_PROBE(...) ((void)0)
#define WB_PROBE_TILE(...) ((void)0)
#define WB_PROBE_FRAGMENT(...) ((void)0)
#else
#define WB_PROBE(stage, value, ...) wb::store(wb::KEY<wb::key(#stage)>, value, wb::index(__VA_ARGS__), false)
// No barrier is added, which could hide a race: the tile is complete behind the kernel's own.
#define WB_PROBE_TILE(stage, r, rows, c, cols, value, ...)                                                      \
    wb::store_tile(wb::KEY<wb::key(#stage)>, rows, cols, [&](int r, int c) { (void)r, (void)c; return value; }, \
                   [&](int r, int c) { return wb::index(__VA_ARGS__); })
#define WB_PROBE_FRAGMENT(stage, fragment, r, c, ...) \
    wb::store_fragment(wb::KEY<wb::key(#stage)>, fragment, [&](int r, int c) { return wb::index(__VA_ARGS__); })

namespace wb {
constexpr int MAX_AXES = 5;
// One for each stage. A slot is a 32-bit word whatever the values' type, so that one pattern can mean "never written".
struct Slots {
    unsigned key, axes;  // of the stage's name; how many
    long long sizes[MAX_AXES];
    unsigned *words;  // null: nobody asked for this stage
    // written by the probes:
    unsigned type, indices;             // of the first value; how many the first refused store had
    long long first[MAX_AXES];          // those
    unsigned long long refused, mixed;  // stores with indices that are none; with a value of another type
};

struct Table {
    const void *places[2];               // the bits 0, 1, ... 255, in 32 and in 16 bits
    unsigned long long unknown, stages;  // stores to stages that are none, written by the probes; how many there are
    Slots slots[1];                      // in truth as many as `stages`
};
struct Index { long long at[MAX_AXES]; unsigned axes; };

// FNV-1a: a table knows a stage by it, so that no list of stages stands here.
__device__ constexpr unsigned key(const char *name, unsigned hash = 2166136261u) {
    return *name ? key(name + 1, (hash ^ static_cast<unsigned char>(*name)) * 16777619u) : hash;
}
template <unsigned K> constexpr unsigned KEY = K;  // has the compiler compute it

// Where the table is; null, and nothing is stored, until Python has filled it in.
#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
static __constant__ Table *wb_probe_table;  // one in each translation unit; Python calls what fills them all
struct Unit { int (*fill)(Table *); Unit *next; };
inline Unit *units = nullptr;
static Unit unit{[](Table *table) -> int { return cudaMemcpyToSymbol(wb_probe_table, &table, sizeof table); }, units};
static const bool listed = (units = &unit);
extern "C" __attribute__((weak, visibility("default"))) int wb_probe_hand_over(Table *table) {
    int error = 0;
    for (Unit *one = units; one && !error; one = one->next) error = one->fill(table);
    return error;
}
#else
extern "C" { __constant__ Table *wb_probe_table; }  // found by this name
#endif

__device__ inline int thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
template <class... I> __device__ Index index(I... i) {
    static_assert(sizeof...(i) <= MAX_AXES, "a stage has at most five axes");
    return {{static_cast<long long>(i)...}, sizeof...(i)};
}

// Not inlined: a kernel with many probes would outgrow its registers.
__device__ __noinline__ inline void store_word(unsigned key, unsigned word, unsigned type, Index index, bool padded) {
    Table *table = wb_probe_table;
    if (!table) return;
    Slots *slots = nullptr;
    for (unsigned long long i = 0; i < table->stages; ++i)
        if (table->slots[i].key == key) slots = table->slots + i;
    if (!slots) atomicAdd(&table->unknown, 1ull);
    if (!slots || !slots->words) return;
    bool inside = true, refused = index.axes != slots->axes;
    long long offset = 0;
    for (unsigned i = 0; i < index.axes && !refused; ++i) {
        inside &= index.at[i] < slots->sizes[i];
        refused = index.at[i] < 0 || (!inside && !padded);
        offset = offset * slots->sizes[i] + index.at[i];
    }
    if (refused && atomicAdd(&slots->refused, 1ull) == 0) {
        slots->indices = index.axes;
        for (int i = 0; i < MAX_AXES; ++i) slots->first[i] = index.at[i];
    }
    if (refused || !inside) return;
    unsigned first = slots->type;
    if (first != type) first = atomicCAS(&slots->type, 0u, type);
    if (first && first != type) atomicAdd(&slots->mixed, 1ull);
    else slots->words[offset] = word;
}

template <class T> __device__ unsigned bits(const T &value) {
    unsigned word = 0;
    return memcpy(&word, &value, sizeof value), word;
}
// A type is told by the bits of its 1 and its size, so that half and bfloat16 may be of any library. CUDA's own have no
// constructor where torch compiles.
template <class T> __device__ unsigned one(const T &) { return bits(T(1.0f)); }
#ifdef __CUDA_FP16_TYPES_EXIST__
__device__ inline unsigned one(const __half &) { return 0x3c00; }
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
__device__ inline unsigned one(const __nv_bfloat16 &) { return 0x3f80; }
#endif

template <class T> __device__ void store(unsigned key, const T &value, Index index, bool padded) {
    static_assert(sizeof(T) <= 4, "a probe stores float, half, bfloat16, float8 or uint8");
    store_word(key, bits(value), one(value) + sizeof(T), index, padded);
}

template <class Value, class At> __device__ void store_tile(unsigned key, int rows, int cols, Value value, At at) {
    for (int i = thread(); i < rows * cols; i += blockDim.x * blockDim.y * blockDim.z)
        store(key, value(i / cols, i % cols), at(i / cols, i % cols), true);
}

// PTX ISA, fragments of mma.m16n8 and wgmma.m64: lane 4 g + t holds the columns 2 t, 2 t + 1 of the rows g and g + 8 in
// every eight columns. Of wgmma's 64 rows a warp holds 16, the first of which is for the indices to add.
template <class T, int N, class At> __device__ void store_fragment(unsigned key, const T (&x)[N], At at) {
    static_assert(N % 4 == 0, "a fragment of mma.m16n8 has four values a lane for every eight columns");
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int r = thread() % 32 / 4 + i / 2 % 2 * 8, c = i / 4 * 8 + thread() % 4 * 2 + i % 2;
        store(key, x[i], at(r, c), true);
    }
}

#ifdef __CUDA_MMA_H__  // Where WMMA keeps an element is not specified: a fragment loaded from 0, 1, 2, ... tells.
namespace wmma = nvcuda::wmma;
template <int M, int N, int K, class T, class At>
__device__ void store_fragment(unsigned key, const wmma::fragment<wmma::accumulator, M, N, K, T> &x, At at) {
    if (!wb_probe_table) return;
    wmma::fragment<wmma::accumulator, M, N, K, T> place;
    const void *places = wb_probe_table->places[sizeof(T) == 2];
    wmma::load_matrix_sync(place, static_cast<const T *>(places), N, wmma::mem_row_major);
#pragma unroll
    for (int i = 0; i < x.num_elements; ++i) {
        const int n = bits(place.x[i]);
        store(key, x.x[i], at(n / N, n % N), true);
    }
}
#endif
}  // namespace wb
#endif
