// What probed kernels use of CUDA C++, for g++, so that their indices and their arithmetic are tested without a GPU.
// Threads run in turn, each from one barrier or shuffle to the next, which all threads of a block must reach alike.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define __device__
#define __constant__
#define __global__
#define __noinline__ __attribute__((noinline))
#define __shared__ static

struct dim3 {
    int x = 1, y = 1, z = 1;
};
inline dim3 threadIdx, blockIdx, blockDim;
inline std::vector<float> exchanged;

using std::min;

struct Thread {
    ucontext_t at;
    std::vector<char> stack = std::vector<char>(1 << 16);
    bool done = false;
};
inline ucontext_t scheduler;
inline std::vector<Thread> threads;
inline std::function<void()> body;

inline void run_thread() {
    body();
    threads[threadIdx.x].done = true;
}

inline void __syncthreads() { swapcontext(&threads[threadIdx.x].at, &scheduler); }

inline float __shfl_xor_sync(unsigned, float x, int offset) {
    exchanged[threadIdx.x] = x;
    __syncthreads();
    x = exchanged[threadIdx.x ^ offset];
    __syncthreads();
    return x;
}

inline float __fmul_rn(float x, float y) { return x * y; }

inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

template <class T> T atomicAdd(T *address, T x) { return std::exchange(*address, *address + x); }

template <class T> T atomicCAS(T *address, T expected, T x) {
    return std::exchange(*address, *address == expected ? x : *address);
}

inline void run_block() {
    threads = std::vector<Thread>(blockDim.x);
    exchanged.resize(blockDim.x);
    for (Thread &thread : threads) {
        getcontext(&thread.at);
        thread.at.uc_stack.ss_sp = thread.stack.data();
        thread.at.uc_stack.ss_size = thread.stack.size();
        thread.at.uc_link = &scheduler;
        makecontext(&thread.at, run_thread, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (threadIdx = {0, 0, 0}; threadIdx.x < blockDim.x; ++threadIdx.x)
            if (Thread &thread = threads[threadIdx.x]; !thread.done) {
                swapcontext(&scheduler, &thread.at);
                running |= !thread.done;
            }
    }
}

template <class... P, std::size_t... I>
void launch(void (*kernel)(P...), const int *grid, int block, void **arguments, std::index_sequence<I...>) {
    blockDim = {block};
    body = [=] { kernel(*static_cast<P *>(arguments[I])...); };
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) run_block();
}

// Exports kernel_on_host(grid, block, arguments), which takes what cudaLaunchKernel does: pointers to the arguments.
#define ON_HOST(kernel)                                                              \
    extern "C" void kernel##_on_host(const int *grid, int block, void **arguments) { \
        [&]<class... P>(void (*function)(P...)) {                                    \
            launch(function, grid, block, arguments, std::index_sequence_for<P...>()); \
        }(kernel);                                                                   \
    }
