#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// RMSNorm of the groups of rows: a workgroup for each. Groups have weights of their own, or the same ones.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push { Floats x; Floats weight; Floats y; uint n; float eps; uint weight_step; };
shared float lanes[16];
shared float factor;
void main() {
    uint t = gl_LocalInvocationID.x;
    uint group = gl_WorkGroupID.y;
    uint base = (gl_WorkGroupID.x * gl_NumWorkGroups.y + group) * n;
    if (t < 16u) {
        float sum = 0.0;
        for (uint i = t; i < n; i += 16u) {
            float v = x.at[base + i];
            sum = fused(v, v, sum);
        }
        // A short tail is padded with zeros.
        if (n % 16u != 0u && t >= n % 16u) sum = add(sum, 0.0);
        lanes[t] = sum;
    }
    barrier();
    if (t == 0u) factor = divide(1.0, root(add(divide(joined(lanes), float(n)), eps)));
    barrier();
    for (uint i = t; i < n; i += 64u) y.at[base + i] = mul(mul(x.at[base + i], factor), weight.at[group * weight_step + i]);
}
