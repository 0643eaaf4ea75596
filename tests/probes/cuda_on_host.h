// What probed kernels use of CUDA C++, for g++: blocks run one after the other, the threads of a block as threads.
// __syncthreads and shuffles synchronise, so that indices and arithmetic can be tested without a GPU; races cannot.
#pragma once

#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __constant__
#define __global__
#define __noinline__ __attribute__((noinline))
#define __shared__ static

struct dim3 {
    int x = 1, y = 1, z = 1;
};
inline thread_local dim3 threadIdx, blockIdx;
inline dim3 blockDim;
inline std::unique_ptr<std::barrier<>> whole_block;
inline std::vector<std::unique_ptr<std::barrier<>>> warps;
inline std::vector<float> exchanged;

using std::fmax, std::min;

inline void __syncthreads() { whole_block->arrive_and_wait(); }

inline float __shfl_xor_sync(unsigned, float x, int offset) {
    exchanged[threadIdx.x] = x;
    warps[threadIdx.x / 32]->arrive_and_wait();
    x = exchanged[threadIdx.x ^ offset];
    warps[threadIdx.x / 32]->arrive_and_wait();
    return x;
}

inline float __fmul_rn(float x, float y) { return x * y; }

inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

template <class T> T atomicAdd(T *address, T x) { return __atomic_fetch_add(address, x, __ATOMIC_SEQ_CST); }

template <class T> T atomicCAS(T *address, T expected, T x) {
    __atomic_compare_exchange_n(address, &expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

// kernel<<<grid, block>>>(arguments...), block along x
template <class... P, class... A> void launch(void (*kernel)(P...), dim3 grid, int block, A... arguments) {
    blockDim = {block};
    exchanged.resize(block);
    for (int z = 0; z < grid.z; ++z)
        for (int y = 0; y < grid.y; ++y)
            for (int x = 0; x < grid.x; ++x) {
                whole_block = std::make_unique<std::barrier<>>(block);
                warps.clear();
                for (int first = 0; first < block; first += 32)
                    warps.push_back(std::make_unique<std::barrier<>>(std::min(32, block - first)));
                std::vector<std::thread> threads;
                for (int thread = 0; thread < block; ++thread)
                    threads.emplace_back([=] {
                        threadIdx = {thread, 0, 0};
                        blockIdx = {x, y, z};
                        kernel(arguments...);
                    });
                for (auto &thread : threads) thread.join();
            }
}

template <class... P, std::size_t... I>
void launch_with(void (*kernel)(P...), const int *grid, int block, void **arguments, std::index_sequence<I...>) {
    launch(kernel, {grid[0], grid[1], grid[2]}, block, *static_cast<P *>(arguments[I])...);
}

// Exports kernel_on_host(grid, block, arguments), as cudaLaunchKernel takes them: pointers to the arguments.
#define ON_HOST(kernel)                                                                                       \
    extern "C" void kernel##_on_host(const int *grid, int block, void **arguments) {                          \
        [&]<class... P>(void (*function)(P...)) {                                                             \
            launch_with(function, grid, block, arguments, std::index_sequence_for<P...>());                   \
        }(kernel);                                                                                            \
    }
