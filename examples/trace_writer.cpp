// Causal attention in C++, and a trace of it for `workbench diff`: docs/reference/trace-format.md.
//   g++ -std=c++17 -O2 trace_writer.cpp -o trace_writer && ./trace_writer run.safetensors && workbench diff run.safetensors
// On inputs of `workbench inputs --out in.safetensors --seqlen 24 --head-dim 16 --causal`:
//   ./trace_writer run.safetensors in.safetensors && workbench diff run.safetensors
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

struct Array { std::string name, axes, shape; std::vector<float> data; };  // axes: none of q, k and v

void write_trace(const std::string& path, const std::string& target, const std::vector<Array>& arrays) {
    std::string tensors, stages;
    uint64_t at = 0;
    for (const Array& x : arrays) {
        tensors += ",\"" + x.name + "\":{\"dtype\":\"F32\",\"shape\":[" + x.shape + "],\"data_offsets\":[";
        tensors += std::to_string(at) + "," + std::to_string(at + 4 * x.data.size()) + "]}";
        at += 4 * x.data.size();
        if (!x.axes.empty()) stages += (stages.empty() ? "'" : ",'") + x.name + "':{'axes':'" + x.axes + "'}";
    }
    std::string manifest = "{'schema':'workbench.trace/2','target':'" + target + "','case':{'causal':true},"
                           "'contract':{'exp_ulps':1,'exp_ulps_per_x':0},'stages':{" + stages + "}}";
    for (size_t i; (i = manifest.find('\'')) != std::string::npos;) manifest.replace(i, 1, "\\\"");  // JSON in JSON
    std::string header = "{\"__metadata__\":{\"workbench\":\"" + manifest + "\"}" + tensors + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t size = header.size();  // little-endian, as this machine
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), 8) << header;
    for (const Array& x : arrays) file.write(reinterpret_cast<const char*>(x.data.data()), 4 * x.data.size());
}

std::vector<float> read_array(const std::string& path, const std::string& name) {  // of an F32 one
    std::ifstream file(path, std::ios::binary);
    uint64_t size = 0, first = 0, last = 0;
    file.read(reinterpret_cast<char*>(&size), 8);
    std::string header(size, ' ');
    file.read(header.data(), size);
    const std::string key = "\"data_offsets\":[";
    std::istringstream offsets(header.substr(header.find(key, header.find("\"" + name + "\":")) + key.size()));
    offsets >> first && offsets.ignore() >> last;
    std::vector<float> data((last - first) / 4);
    file.seekg(8 + size + first).read(reinterpret_cast<char*>(data.data()), last - first);
    return data;
}

int main(int argc, char** argv) {
    const int N = 24, D = 16;
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    std::vector<float> q(N * D), k(N * D), v(N * D), scores(N * N, -INFINITY), out(N * D), lse(N);
    for (auto* x : {&q, &k, &v}) for (float& e : *x) e = normal(random);
    if (argc > 2) q = read_array(argv[2], "q"), k = read_array(argv[2], "k"), v = read_array(argv[2], "v");
    for (int i = 0; i < N; i++) {
        float largest = -INFINITY, sum = 0;
        for (int j = 0; j <= i; j++) {
            float s = 0;
            for (int d = 0; d < D; d++) s += q[i * D + d] * k[j * D + d];
            scores[i * N + j] = s / std::sqrt(float(D));
            largest = std::max(largest, scores[i * N + j]);
        }
        for (int j = 0; j <= i; j++) {
            const float p = std::exp(scores[i * N + j] - largest);
            sum += p;
            for (int d = 0; d < D; d++) out[i * D + d] += p * v[j * D + d];
        }
        for (int d = 0; d < D; d++) out[i * D + d] /= sum;
        lse[i] = largest + std::log(sum);
    }
    const std::string rows = "1,1,24,16";
    write_trace(argv[1], "trace_writer.cpp", {{"q", "", rows, q}, {"k", "", rows, k}, {"v", "", rows, v},
        {"scores", "bhqk", "1,1,24,24", scores}, {"out", "bhqd", rows, out}, {"lse", "bhq", "1,1,24", lse}});
}
