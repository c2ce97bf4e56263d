#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// The experts of each row, ascending, and their weights, see src/model/routes.rs: an invocation for each row.
layout(local_size_x = 32) in;
layout(push_constant) uniform Push {
    Floats scores;         // [m, n], changed
    Words chosen;          // [m, n_active]
    Floats weights;        // [m, n_active]
    Floats router_bias;    // [n]
    Floats choice_bias;    // [n]
    Floats expert_scales;  // [n]
    uint m;
    uint n;
    uint n_active;
    uint features;
};
const uint ROUTER_BIAS = 1u, CHOICE_BIAS = 2u, SCALES = 4u, SIGMOID = 8u, NORMALISED = 16u;
const uint ACTIVE_MAX = 16u;

void main() {
    uint row = gl_GlobalInvocationID.x;
    if (row >= m) return;
    uint base = row * n;
    bool is_sigmoid = (features & SIGMOID) != 0u;
    for (uint i = 0u; i < n; i++) {
        float score = scores.at[base + i];
        if ((features & ROUTER_BIAS) != 0u) score = add(score, router_bias.at[i]);
        if (is_sigmoid) score = divide(1.0, add(1.0, exp_within(negative(score))));
        scores.at[base + i] = score;
    }
    uint picks[ACTIVE_MAX];
    for (uint i = 0u; i < n_active; i++) {
        uint best = n;
        float most = 0.0;
        for (uint expert = 0u; expert < n; expert++) {
            bool is_free = true;
            for (uint j = 0u; j < i; j++) is_free = is_free && picks[j] != expert;
            if (!is_free) continue;
            float score = add(scores.at[base + expert], (features & CHOICE_BIAS) != 0u ? choice_bias.at[expert] : 0.0);
            // A NaN is chosen only if no number is left.
            if (best == n || is_less(most, score) || (bits(most) & MAGNITUDE) > INFINITE) {
                best = expert;
                most = score;
            }
        }
        picks[i] = best;
    }
    for (uint i = 1u; i < n_active; i++) {
        for (uint j = i; j > 0u && picks[j] < picks[j - 1u]; j--) {
            uint other = picks[j];
            picks[j] = picks[j - 1u];
            picks[j - 1u] = other;
        }
    }
    bool is_divided = !is_sigmoid || (features & NORMALISED) != 0u;
    float least = is_sigmoid ? 1e-6 : 0.0;
    if (!is_sigmoid) {
        float largest = number(INFINITE | SIGN);
        for (uint i = 0u; i < n; i++) largest = larger(largest, scores.at[base + i]);
        for (uint i = 0u; i < n; i++) scores.at[base + i] = exp_to_one(sub(scores.at[base + i], largest));
    }
    float sum = -0.0;
    if ((features & NORMALISED) != 0u) {
        for (uint i = 0u; i < n_active; i++) sum = add(sum, scores.at[base + picks[i]]);
    } else {
        for (uint i = 0u; i < n; i++) sum = add(sum, scores.at[base + i]);
    }
    for (uint i = 0u; i < n_active; i++) {
        float weight = scores.at[base + picks[i]];
        if (is_divided) weight = divide(weight, add(sum, least));
        if ((features & SCALES) != 0u) weight = mul(weight, expert_scales.at[picks[i]]);
        chosen.at[row * n_active + i] = picks[i];
        weights.at[row * n_active + i] = weight;
    }
}
