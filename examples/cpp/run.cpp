// Runs a compiled file of `howsure.export(..., compiled=True)`: ./run net.pt2 4 6
// The numbers after the file are the shape of its input. Prints mean and standard deviation.
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdlib>
#include <iostream>
#include <vector>

int main(int count, char** words) {
  if (count < 3) {
    std::cerr << "usage: run net.pt2 SIZE [SIZE ...]\n";
    return 2;
  }
  std::vector<int64_t> shape;
  for (int i = 2; i < count; ++i) shape.push_back(std::atoll(words[i]));

  c10::InferenceMode guard;
  torch::inductor::AOTIModelPackageLoader program(words[1]);
  // Your sensor's data goes here; these numbers are easy to repeat in Python.
  const auto size = c10::multiply_integers(shape);
  const auto x = at::linspace(0, 1, size).reshape(shape);
  const auto out = program.run({x});  // mean, data_var, model_var

  const auto mean = out[0].flatten(), std = (out[1] + out[2]).sqrt().flatten();
  std::cout.precision(9);
  for (int64_t i = 0; i < mean.numel(); ++i) {
    std::cout << mean[i].item<double>() << " " << std[i].item<double>() << "\n";
  }
}
