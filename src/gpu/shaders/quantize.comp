#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Rows to int8 in groups, with a scale for each group and a sum for each 32 values.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push { Floats x; Words q; Floats scales; Ints sums; uint groups; uint group; };  // groups of a row, values of a group
void main() {
    if (gl_GlobalInvocationID.x >= groups) return;
    uint g = gl_WorkGroupID.y * groups + gl_GlobalInvocationID.x;
    uint base = g * group;
    uint most = 0u;
    for (uint i = 0u; i < group; i++) most = max(most, bits(x.at[base + i]) & MAGNITUDE);
    float scale = divide(number(most), 127.0);
    float inverse = divide(1.0, scale);
    bool is_finite = most < INFINITE;
    bool has_codes = is_finite && (bits(inverse) & MAGNITUDE) < INFINITE;
    scales.at[g] = has_codes ? scale : is_finite ? 0.0 : number(NOT_A_NUMBER);
    for (uint run = base / 32u; run < (base + group) / 32u; run++) {
        int sum = 0;
        for (uint i = 0u; i < 8u; i++) {
            uint word = 0u;
            for (uint j = 0u; j < 4u; j++) {
                uint code = bits(add(mul(x.at[run * 32u + i * 4u + j], inverse), 12582912.0)) & 0xffu;
                if (!has_codes) code = 0u;
                sum += bitfieldExtract(int(code), 0, 8);
                word |= code << (8u * j);
            }
            q.at[run * 8u + i] = word;
        }
        sums.at[run] = sum;
    }
}
