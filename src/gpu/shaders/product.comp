#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Rows of int8 activations by a matrix of codes. A workgroup has a panel of 32 weight rows and TILE activation rows. Its
// 8 parts each sum the products of a group; then each of TILE parts adds the groups' sums of one activation row in
// order. The integer sums are exact, so only that order matters.
//
// A panel has its codes, then its first and its second parameters. Codes are for each run of 32 columns: the first 16 of
// each row, then the others; with 4 bits, columns i and i + 16 in byte i. Parameters are for each group: 32 values, one a
// row.
layout(local_size_x = 256) in;

// How a group's sum becomes a part of the output, see kernels/mod.rs.
const uint PLAIN = 0u;   // scale
const uint HALVES = 1u;  // a scale for each half of a run
const uint OFFSET = 2u;  // scale and offset
const uint BCML1 = 3u;   // multiplier and offset
const uint BCML2 = 4u;   // integer scale and zero; a step for each row
const uint MINIMA = 5u;  // scale and offset, and integers for each half of a run that multiply the offset
layout(constant_id = 1) const uint FORM = PLAIN;
layout(constant_id = 2) const bool FOUR_BITS = false;
// Whether each activation row, or each few, has a matrix of its own: that of an expert.
layout(constant_id = 3) const bool BY_EXPERT = false;

const uint TILE = 4u;
const uint PARTS = 8u;
const uint ROWS = 32u;

layout(push_constant) uniform Push {
    Quads codes;
    Floats first;    // scales, multipliers, or integer scales and zeros
    Floats second;   // scales of second halves, offsets, integers and offsets, or the rows' steps
    Quads q;
    Floats scales;
    Ints sums;
    Floats y;
    uint m;
    uint k;
    uint group;
    uint rows;
    uint width;      // of a row of y
    uint column;     // of y where the matrix's outputs begin
    uint bias;       // of codes of 4 bits
    uint adds;       // whether the product is added to y
    Words chosen;    // the expert of each row of y
    uint share;      // rows of y for each activation row
    uint panels;     // of an expert
    uint stride;     // bytes of a panel
};

shared int part_sums[TILE][PARTS][ROWS];
shared int second_sums[TILE][PARTS][ROWS];

#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int packed_dot(uint a, uint b, spirv_literal int form);
int dot4(uint a, uint b) { return packed_dot(a, b, 0); }
#else
int dot4(uint a, uint b) {
    int x = int(a), y = int(b);
    return bitfieldExtract(x, 0, 8) * bitfieldExtract(y, 0, 8) + bitfieldExtract(x, 8, 8) * bitfieldExtract(y, 8, 8)
        + bitfieldExtract(x, 16, 8) * bitfieldExtract(y, 16, 8) + (x >> 24) * (y >> 24);
}
#endif
const uvec4 ONES = uvec4(0x01010101u);
int dot16(uvec4 a, uvec4 b) { return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w); }

// The sums of a group's products for each activation row of the tile.
void sum_group(uint panel, uint g, uint row, uint token, uint end, out int low[TILE], out int high[TILE]) {
    uint runs = group / 32u, all = k / 32u, start = panel * (stride / 16u);
    for (uint t = 0u; t < TILE; t++) { low[t] = 0; high[t] = 0; }
    for (uint run = g * runs; run < (g + 1u) * runs; run++) {
        uvec4 a, b;
        if (FOUR_BITS) {
            uvec4 both = codes.at[start + run * ROWS + row];
            a = both & 0x0f0f0f0fu;
            b = (both >> 4) & 0x0f0f0f0fu;
        } else {
            uint at = start + run * 2u * ROWS + row;
            a = codes.at[at];
            b = codes.at[at + ROWS];
        }
        for (uint t = 0u; t < TILE; t++) {
            if (token + t >= end) break;
            uint at = (token + t) * all + run;
            uvec4 x0 = q.at[at * 2u], x1 = q.at[at * 2u + 1u];
            if (FORM == MINIMA) {
                uint both = bits(second.at[panel * (stride / 4u) + run * ROWS + row]);
                low[t] += dot16(a, x0) + dot16(b, x1);
                high[t] += int(both & 0xffu) * dot16(ONES, x0) + int(both >> 8 & 0xffu) * dot16(ONES, x1);
                continue;
            }
            low[t] += dot16(a, x0);
            high[t] += dot16(b, x1);
            if (FOUR_BITS) low[t] -= int(bias) * sums.at[at];
        }
    }
}

void main() {
    uint row = gl_LocalInvocationID.x % ROWS, part = gl_LocalInvocationID.x / ROWS;
    uint groups = k / group, token = gl_WorkGroupID.y * TILE, end = m;
    uint panel = gl_WorkGroupID.x, y_row = token;
    if (BY_EXPERT) {
        y_row = gl_WorkGroupID.y;
        token = y_row / share;
        end = token + 1u;
        panel += chosen.at[y_row] * panels;
    }
    bool adds_up = part < TILE && token + part < end;
    float y0 = 0.0, y1 = 0.0;
    for (uint from = 0u; from < groups; from += PARTS) {
        uint g = from + part;
        if (g < groups) {
            int low[TILE], high[TILE];
            sum_group(panel, g, row, token, end, low, high);
            for (uint t = 0u; t < TILE; t++) {
                bool is_apart = FORM == HALVES || FORM == MINIMA;
                part_sums[t][part][row] = is_apart ? low[t] : low[t] + high[t];
                if (is_apart) second_sums[t][part][row] = high[t];
            }
        }
        barrier();
        if (adds_up) {
            uint n = min(PARTS, groups - from);
            for (uint i = 0u; i < n; i++) {
                uint g = from + i;
                uint at = panel * (stride / 4u) + g * ROWS + row;
                float x_scale = scales.at[(token + part) * groups + g];
                int sum = part_sums[part][i][row];
                if (FORM == BCML1) {
                    float t = fused(from_int(sums.at[(token + part) * groups + g]), second.at[at], -0.0);
                    y0 = fused(fused(from_int(sum), first.at[at], t), x_scale, y0);
                } else if (FORM == BCML2) {
                    uint packed = bits(first.at[at]);
                    int scale = int(packed & 0xffffu), zero = int(packed >> 16);
                    int whole = scale * (16 * sum - zero * sums.at[(token + part) * groups + g]);
                    y0 = fused(from_int(whole), x_scale, y0);
                } else {
                    y0 = fused(mul(from_int(sum), first.at[at]), x_scale, y0);
                    if (FORM == HALVES)
                        y1 = fused(mul(from_int(second_sums[part][i][row]), second.at[at]), x_scale, y1);
                    if (FORM == MINIMA) {
                        float offset = widened(bits(second.at[at]) >> 16);
                        y1 = fused(offset, mul(x_scale, from_int(second_sums[part][i][row])), y1);
                    }
                    if (FORM == OFFSET) {
                        float s = from_int(sums.at[(token + part) * groups + g]);
                        y1 = fused(second.at[at], mul(x_scale, s), y1);
                    }
                }
            }
        }
        barrier();
    }
    uint at_row = gl_WorkGroupID.x * ROWS + row;
    if (!adds_up || at_row >= rows) return;
    float product = y0;
    if (FORM == HALVES || FORM == OFFSET || FORM == MINIMA) product = add(y0, y1);
    if (FORM == BCML2) product = mul(y0, second.at[panel * (stride / 4u) + row]);
    uint at = (y_row + part) * width + column + at_row;
    y.at[at] = adds != 0u ? add(y.at[at], product) : product;
}
