#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Biases, norms and rotation of the heads of queries, keys and values, in place: a workgroup for each head of each row.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
    Floats qkv;
    Floats cosines;   // [m, rotary / 2]
    Floats sines;
    Floats bias;      // of all heads
    Floats q_norm;
    Floats k_norm;
    Floats growth;    // a factor of each row's queries
    uint n_heads;     // of queries
    uint n_kv_heads;
    uint head_dim;
    uint rotary;
    uint features;    // BIAS, Q_NORM, K_NORM, GROWTH
    float eps;
};
const uint BIAS = 1u, Q_NORM = 2u, K_NORM = 4u, GROWTH = 8u;
shared float values[512];
shared float lanes[16];
shared float factor;
void main() {
    uint t = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint base = (row * (n_heads + 2u * n_kv_heads) + head) * head_dim;
    bool is_query = head < n_heads, is_key = !is_query && head < n_heads + n_kv_heads;
    for (uint i = t; i < head_dim; i += 64u) {
        float v = qkv.at[base + i];
        if ((features & BIAS) != 0u) v = add(v, bias.at[head * head_dim + i]);
        values[i] = v;
    }
    barrier();
    bool is_normed = (is_query && (features & Q_NORM) != 0u) || (is_key && (features & K_NORM) != 0u);
    if (is_normed && t < 16u) {
        float sum = 0.0;
        for (uint i = t; i < head_dim; i += 16u) sum = fused(values[i], values[i], sum);
        if (head_dim % 16u != 0u && t >= head_dim % 16u) sum = add(sum, 0.0);
        lanes[t] = sum;
    }
    barrier();
    if (is_normed && t == 0u)
        factor = divide(1.0, root(add(divide(joined(lanes), float(head_dim)), eps)));
    barrier();
    if (is_normed) {
        for (uint i = t; i < head_dim; i += 64u) {
            float weight = is_query ? q_norm.at[i] : k_norm.at[i];
            values[i] = mul(mul(values[i], factor), weight);
        }
    }
    barrier();
    if (is_query || is_key) {
        for (uint pair = t; pair < rotary / 2u; pair += 64u) {
            float c = cosines.at[row * (rotary / 2u) + pair], s = sines.at[row * (rotary / 2u) + pair];
            float a = values[2u * pair], b = values[2u * pair + 1u];
            values[2u * pair] = fused(a, c, negative(mul(b, s)));
            values[2u * pair + 1u] = fused(a, s, mul(b, c));
        }
    }
    barrier();
    for (uint i = t; i < head_dim; i += 64u) {
        float v = values[i];
        if (is_query && (features & GROWTH) != 0u) v = mul(v, growth.at[row]);
        qkv.at[base + i] = v;
    }
}
