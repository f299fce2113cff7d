#include "cuda/cublaslt/algorithm.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace pydlbench::cuda::cublaslt {

namespace {

// Runs of identifiers in cublasLtMatmulTile_t: from `first` on, each tile is one step larger, until
// the next run starts.
struct TileRun {
  std::uint16_t first, rows, columns, row_step, column_step;
};
constexpr TileRun kTiles[] = {
    {1, 8, 8, 0, 8},       {3, 16, 8, 0, 0},       {4, 8, 32, 0, 0},        {5, 16, 16, 0, 0},
    {6, 32, 8, 0, 0},      {7, 8, 64, 0, 0},       {8, 16, 32, 0, 0},       {9, 32, 16, 0, 0},
    {10, 64, 8, 0, 0},     {11, 32, 32, 0, 32},    {13, 64, 32, 0, 0},      {14, 32, 128, 0, 0},
    {15, 64, 64, 0, 0},    {16, 128, 32, 0, 0},    {17, 64, 128, 0, 0},     {18, 128, 64, 0, 0},
    {19, 64, 256, 0, 0},   {20, 128, 128, 0, 0},   {21, 256, 64, 0, 0},     {22, 64, 512, 0, 0},
    {23, 128, 256, 0, 0},  {24, 256, 128, 0, 0},   {25, 512, 64, 0, 0},     {26, 64, 96, 0, 0},
    {27, 96, 64, 0, 64},   {29, 128, 160, 0, 0},   {30, 160, 128, 32, 0},   {32, 128, 192, 0, 0},
    {33, 128, 96, 0, 0},   {34, 32, 256, 0, 0},    {35, 256, 32, 0, 0},     {36, 8, 128, 0, 64},
    {47, 16, 64, 0, 64},   {59, 24, 64, 0, 64},    {71, 32, 192, 0, 128},   {73, 32, 384, 0, 64},
    {80, 40, 64, 0, 64},   {92, 48, 64, 0, 64},    {104, 56, 64, 0, 64},    {116, 64, 192, 0, 128},
    {118, 64, 384, 0, 64}, {120, 64, 576, 0, 64},  {124, 72, 64, 0, 64},    {134, 80, 64, 0, 64},
    {143, 88, 64, 0, 64},  {151, 96, 192, 0, 64},  {157, 104, 64, 0, 64},   {164, 112, 64, 0, 64},
    {170, 120, 64, 0, 64}, {176, 128, 320, 0, 64}, {178, 136, 64, 0, 64},   {183, 144, 64, 0, 64},
    {188, 152, 64, 0, 64}, {193, 160, 64, 0, 128}, {195, 160, 256, 0, 0},   {196, 168, 64, 0, 64},
    {200, 176, 64, 0, 64}, {204, 184, 64, 0, 64},  {208, 192, 64, 0, 128},  {210, 192, 256, 0, 0},
    {211, 200, 64, 0, 64}, {214, 208, 64, 0, 64},  {217, 216, 64, 0, 64},   {220, 224, 64, 0, 64},
    {223, 232, 64, 0, 64}, {226, 240, 64, 0, 64},  {229, 248, 64, 0, 64},   {232, 256, 192, 0, 0},
    {233, 264, 64, 0, 64}, {235, 272, 64, 0, 64},  {237, 280, 64, 0, 64},   {239, 288, 64, 0, 64},
    {241, 296, 64, 0, 64}, {243, 304, 64, 0, 64},  {245, 312, 64, 0, 64},   {247, 320, 64, 0, 64},
    {249, 328, 64, 0, 64}, {251, 336, 64, 0, 64},  {253, 344, 64, 0, 64},   {255, 352, 64, 0, 64},
    {257, 360, 64, 0, 64}, {259, 368, 64, 0, 64},  {261, 376, 64, 0, 64},   {263, 384, 64, 0, 64},
    {265, 392, 64, 8, 0},  {280, 520, 64, 8, 0},   {312, 64, 16, 0, 8},     {314, 64, 40, 0, 8},
    {317, 64, 72, 0, 8},   {320, 64, 104, 0, 8},   {323, 64, 136, 0, 8},    {330, 64, 200, 0, 8},
    {337, 64, 264, 0, 8},  {344, 64, 328, 0, 8},   {351, 64, 392, 0, 8},    {358, 64, 456, 0, 8},
    {365, 64, 520, 0, 8},  {372, 64, 584, 0, 8},   {379, 64, 648, 0, 8},    {386, 64, 712, 0, 8},
    {393, 128, 8, 0, 8},   {396, 128, 40, 0, 8},   {399, 128, 72, 0, 8},    {402, 128, 104, 0, 8},
    {405, 128, 136, 0, 8}, {408, 128, 168, 0, 8},  {411, 128, 200, 0, 8},   {418, 128, 264, 0, 8},
    {425, 128, 328, 0, 8}, {432, 128, 392, 0, 8},  {448, 192, 8, 0, 8},     {455, 192, 72, 0, 8},
    {462, 192, 136, 0, 8}, {469, 192, 200, 0, 8},  {476, 192, 264, 0, 8},   {486, 256, 8, 0, 8},
    {489, 256, 40, 0, 8},  {492, 256, 72, 0, 8},   {499, 256, 136, 0, 8},   {506, 256, 200, 0, 8},
    {514, 320, 8, 0, 8},   {521, 320, 72, 0, 8},   {528, 320, 136, 0, 8},   {537, 384, 8, 0, 8},
    {544, 384, 72, 0, 8},  {551, 384, 136, 0, 8},  {556, 448, 8, 0, 8},     {563, 448, 72, 0, 8},
    {573, 512, 8, 0, 8},   {580, 512, 72, 0, 8},   {588, 576, 8, 0, 8},     {595, 576, 72, 0, 8},
    {601, 640, 8, 0, 8},   {608, 640, 72, 0, 8},   {612, 704, 8, 0, 8},     {619, 704, 72, 0, 8},
    {622, 768, 8, 0, 8},   {629, 768, 72, 0, 8},   {631, 256, 512, 0, 512}, {633, 512, 512, 0, 512},
    {635, 4, 1, 4, 0},     {637, 16, 1, 8, 0},     {642, 64, 1, 64, 0}};
constexpr std::uint32_t kLastTile = 645;

// cublasLtMatmulStages_t and cublasLtClusterShape_t by identifier.
constexpr const char* kStages[] = {
    "",       "16x1",    "16x2",    "16x3",    "16x4",     "16x5",     "16x6",    "32x1",
    "32x2",   "32x3",    "32x4",    "32x5",    "32x6",     "64x1",     "64x2",    "64x3",
    "64x4",   "64x5",    "64x6",    "128x1",   "128x2",    "128x3",    "128x4",   "128x5",
    "128x6",  "32x10",   "8x4",     "16x10",   "8x5",      "",         "",        "8x3",
    "8xauto", "16xauto", "32xauto", "64xauto", "128xauto", "256xauto", "768xauto"};
constexpr const char* kClusters[] = {
    "",       "",       "1x1x1",  "2x1x1",  "4x1x1",  "1x2x1",  "2x2x1",  "4x2x1",  "1x4x1",
    "2x4x1",  "4x4x1",  "8x1x1",  "1x8x1",  "8x2x1",  "2x8x1",  "16x1x1", "1x16x1", "3x1x1",
    "5x1x1",  "6x1x1",  "7x1x1",  "9x1x1",  "10x1x1", "11x1x1", "12x1x1", "13x1x1", "14x1x1",
    "15x1x1", "3x2x1",  "5x2x1",  "6x2x1",  "7x2x1",  "1x3x1",  "2x3x1",  "3x3x1",  "4x3x1",
    "5x3x1",  "3x4x1",  "1x5x1",  "2x5x1",  "3x5x1",  "1x6x1",  "2x6x1",  "1x7x1",  "2x7x1",
    "1x9x1",  "1x10x1", "1x11x1", "1x12x1", "1x13x1", "1x14x1", "1x15x1"};

std::string unknown(std::uint32_t id) { return "#" + std::to_string(id); }

template <std::size_t kCount>
std::string named(const char* const (&names)[kCount], std::uint32_t id) {
  return id < kCount && *names[id] != '\0' ? names[id] : unknown(id);
}

std::string reduction_name(std::uint32_t scheme) {
  switch (scheme) {
    case 1:
      return "in place";
    case 2:
      return "compute type";
    case 4:
      return "output type";
    default:
      return "scheme " + std::to_string(scheme);
  }
}

}  // namespace

std::string tile_name(std::uint32_t id) {
  if (id == 0 || id > kLastTile) return unknown(id);
  const auto next =
      std::upper_bound(std::begin(kTiles), std::end(kTiles), id,
                       [](std::uint32_t i, const TileRun& run) { return i < run.first; });
  const auto& run = *std::prev(next);
  const auto steps = id - run.first;
  return std::to_string(run.rows + steps * run.row_step) + "x" +
         std::to_string(run.columns + steps * run.column_step);
}

std::string stages_name(std::uint32_t id) { return named(kStages, id); }

std::string cluster_name(std::uint32_t id) { return named(kClusters, id); }

std::string text(const AlgorithmConfig& config) {
  std::string result = "algo " + std::to_string(config.id);
  if (config.tile != 0) result += " tile " + tile_name(config.tile);
  if (config.stages != 0) result += " stages " + stages_name(config.stages);
  if (config.split_k > 1) {
    result += " split-k " + std::to_string(config.split_k);
    if (config.reduction_scheme != 0) {
      result += " (" + reduction_name(config.reduction_scheme) + ")";
    }
  }
  if (config.swizzle != 0) result += " swizzle " + std::to_string(config.swizzle);
  if (config.custom_option != 0) result += " option " + std::to_string(config.custom_option);
  if (config.inner_shape != 0) result += " inner " + std::to_string(config.inner_shape);
  if (config.cluster != 0) result += " cluster " + cluster_name(config.cluster);
  return result;
}

}  // namespace pydlbench::cuda::cublaslt
