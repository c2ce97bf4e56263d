#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Turns projections into the values that steer a state's update, in place, see kernels/recurrence.rs: strengths and
// decays of the delta rule, or steps of a state space.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
    Floats x;           // [m, n]
    Floats decay;
    Floats bias;
    uint n;
    uint n_strengths;   // 0 in a state space
};

// ln(1 + exp(x)), see `softplus` in kernels/recurrence.rs.
float softplus(float x) {
    float z = exp_within(number(bits(x) | SIGN));
    float w = divide(z, add(2.0, z));
    float square = mul(w, w);
    const float[9] parts = float[](
        0.0588235294117647059, 0.0666666666666666667, 0.0769230769230769231, 0.0909090909090909091,
        0.111111111111111111, 0.142857142857142857, 0.2, 0.333333333333333333, 1.0);
    float sum = 0.0526315789473684211;
    for (int i = 0; i < 9; i++) sum = fused(sum, square, parts[i]);
    if (is_less(20.0, x)) return x;
    return fused(mul(2.0, w), sum, is_less(0.0, x) ? x : 0.0);
}

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n) return;
    uint at = gl_WorkGroupID.y * n + i;
    float v = x.at[at];
    if (i < n_strengths) {
        x.at[at] = divide(1.0, add(1.0, exp_within(negative(v))));
        return;
    }
    uint head = i - n_strengths;
    v = softplus(add(v, bias.at[head]));
    if (n_strengths != 0u) v = exp_within(mul(decay.at[head], v));
    x.at[at] = v;
}
