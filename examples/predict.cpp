// Answers of an exported model to pictures, in C++ on ONNX Runtime alone.
//
//     predict MODEL.onnx FOLDER > answers.csv
//
// MODEL.onnx is what `vergence export` wrote for single pictures: eyes, images, or a window of
// frames. FOLDER has a file NAME.npy for each input of the model (image.npy, pose.npy), a row for
// each sample, in the type that the model's metadata names. The program calls the model once for
// each row, on one thread, and prints a line of comma-separated numbers for it; the median time of
// a call goes to the error stream.
//
// Build it against a release of ONNX Runtime, whose archive has the header and the library:
//
//     c++ -std=c++17 -O2 -I onnxruntime/include predict.cpp -L onnxruntime/lib -lonnxruntime -o predict

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#if __has_include(<onnxruntime_c_api.h>)
#include <onnxruntime_c_api.h>
#else
// Without the header: the functions used below, at their places in the table of functions. ONNX
// Runtime only ever appends to that table. `Unused` stands for the functions between them.
struct OrtStatus;
struct OrtEnv;
struct OrtSessionOptions;
struct OrtSession;
struct OrtAllocator;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtMemoryInfo;
struct OrtValue;
struct OrtRunOptions;
using Unused = void*;
enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7
};
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_ERROR = 3 };
enum OrtAllocatorType { OrtDeviceAllocator = 0 };
enum OrtMemType { OrtMemTypeDefault = 0 };
struct OrtApi {
  Unused unused_0[2];
  const char* (*GetErrorMessage)(const OrtStatus*);  // number 2
  OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char*, OrtEnv**);
  Unused unused_4[3];
  OrtStatus* (*CreateSession)(const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**);
  Unused unused_8[1];
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*,
                    size_t, const char* const*, size_t, OrtValue**);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
  Unused unused_11[13];
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions*, int);  // number 24
  Unused unused_25[5];
  OrtStatus* (*SessionGetInputCount)(const OrtSession*, size_t*);
  Unused unused_31[2];
  OrtStatus* (*SessionGetInputTypeInfo)(const OrtSession*, size_t, OrtTypeInfo**);
  Unused unused_34[2];
  OrtStatus* (*SessionGetInputName)(const OrtSession*, size_t, OrtAllocator*, char**);
  OrtStatus* (*SessionGetOutputName)(const OrtSession*, size_t, OrtAllocator*, char**);
  Unused unused_38[11];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void*, size_t, const int64_t*,
                                               size_t, ONNXTensorElementDataType, OrtValue**);
  Unused unused_50[1];
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void**);
  Unused unused_52[3];
  OrtStatus* (*CastTypeInfoToTensorInfo)(const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**);
  Unused unused_56[4];
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo*, ONNXTensorElementDataType*);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t);
  Unused unused_63[1];
  OrtStatus* (*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  Unused unused_66[3];
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);
  Unused unused_70[8];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator**);  // number 78
  Unused unused_79[17];
  void (*ReleaseValue)(OrtValue*);  // number 96
  Unused unused_97[2];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo*);
};
struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};
#define ORT_API_VERSION 13
extern "C" const OrtApiBase* OrtGetApiBase();
#endif

const OrtApi* api = nullptr;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "predict: %s\n", why.c_str());
  std::exit(2);
}

void check(OrtStatus* status) {
  if (status != nullptr) fail(api->GetErrorMessage(status));
}

// An input of the model, with the rows of its file.
struct Column {
  char* name = nullptr;
  ONNXTensorElementDataType type;
  std::vector<int64_t> shape;  // of one call: a single sample
  size_t bytes = 0;            // of one row
  std::vector<char> rows;
};

// The array of a .npy file of version 1, whose header is text: {'descr': '|u1', ...}.
std::vector<char> read_npy(const std::string& path, const std::string& descr) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (all.size() < 10 || std::string(all.data() + 1, 5) != "NUMPY") fail(path + " is no .npy file");
  size_t begin = 10 + static_cast<uint8_t>(all[8]) + 256 * static_cast<uint8_t>(all[9]);
  if (all[6] != 1 || begin > all.size()) fail(path + " is no .npy file of version 1");
  std::string header(all.data() + 10, begin - 10);
  if (header.find("'" + descr + "'") == std::string::npos) {
    fail(path + " has other numbers than the model takes, " + descr + ": " + header);
  }
  if (header.find("'fortran_order': False") == std::string::npos) {
    fail(path + " is stored by columns: save np.ascontiguousarray(array)");
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.end()};
}

Column read_column(OrtSession* session, OrtAllocator* allocator, size_t at, const char* folder) {
  Column column;
  OrtTypeInfo* about = nullptr;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  size_t axes = 0;
  check(api->SessionGetInputName(session, at, allocator, &column.name));
  check(api->SessionGetInputTypeInfo(session, at, &about));
  check(api->CastTypeInfoToTensorInfo(about, &tensor));
  check(api->GetTensorElementType(tensor, &column.type));
  check(api->GetDimensionsCount(tensor, &axes));
  column.shape.resize(axes);
  check(api->GetDimensions(tensor, column.shape.data(), axes));
  std::string descr;
  if (column.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) descr = "|u1", column.bytes = 1;
  if (column.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) descr = "<f4", column.bytes = 4;
  if (column.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) descr = "<i8", column.bytes = 8;
  if (descr.empty()) fail(std::string(column.name) + " has a type that this program does not read");
  for (int64_t& size : column.shape) {
    if (size < 0) size = 1;  // any number, such as a batch of any size
    column.bytes *= static_cast<size_t>(size);
  }
  column.rows = read_npy(std::string(folder) + "/" + column.name + ".npy", descr);
  return column;
}

int main(int count, char** arguments) {
  if (count != 3) fail("usage: predict MODEL.onnx FOLDER");
  api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (api == nullptr) fail("this library is older than the header");
  OrtEnv* environment = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  OrtAllocator* allocator = nullptr;
  OrtMemoryInfo* memory = nullptr;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "predict", &environment));
  check(api->CreateSessionOptions(&options));
  check(api->SetIntraOpNumThreads(options, 1));
  // On Windows a path has wide characters: convert it there.
  check(api->CreateSession(environment, arguments[1], options, &session));
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  check(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));

  size_t inputs = 0;
  check(api->SessionGetInputCount(session, &inputs));
  std::vector<Column> columns;
  for (size_t at = 0; at < inputs; ++at) {
    columns.push_back(read_column(session, allocator, at, arguments[2]));
  }
  size_t samples = columns[0].rows.size() / columns[0].bytes;
  std::vector<const char*> names;
  for (const Column& column : columns) {
    if (column.rows.size() != samples * column.bytes) {
      fail(std::string(column.name) + ".npy has rows of another shape or number than the model's");
    }
    names.push_back(column.name);
  }
  char* output = nullptr;
  check(api->SessionGetOutputName(session, 0, allocator, &output));

  std::vector<double> milliseconds;
  for (size_t row = 0; row < samples; ++row) {
    auto start = std::chrono::steady_clock::now();
    std::vector<OrtValue*> values(inputs, nullptr);
    for (size_t at = 0; at < inputs; ++at) {
      Column& column = columns[at];
      check(api->CreateTensorWithDataAsOrtValue(
          memory, column.rows.data() + row * column.bytes, column.bytes, column.shape.data(),
          column.shape.size(), column.type, &values[at]));
    }
    OrtValue* answer = nullptr;
    check(api->Run(session, nullptr, names.data(), values.data(), inputs, &output, 1, &answer));
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    milliseconds.push_back(took.count());

    OrtTensorTypeAndShapeInfo* shape = nullptr;
    void* numbers = nullptr;
    size_t size = 0;
    check(api->GetTensorTypeAndShape(answer, &shape));
    check(api->GetTensorShapeElementCount(shape, &size));
    check(api->GetTensorMutableData(answer, &numbers));
    for (size_t at = 0; at < size; ++at) {
      // Nine digits give back the same float.
      std::printf("%s%.9g", at ? "," : "", static_cast<double>(static_cast<float*>(numbers)[at]));
    }
    std::printf("\n");
    api->ReleaseTensorTypeAndShapeInfo(shape);
    api->ReleaseValue(answer);
    for (OrtValue* value : values) api->ReleaseValue(value);
  }
  if (!milliseconds.empty()) {
    auto middle = milliseconds.begin() + static_cast<std::ptrdiff_t>(milliseconds.size() / 2);
    std::nth_element(milliseconds.begin(), middle, milliseconds.end());
    std::fprintf(stderr, "%zu samples, median %.3f ms\n", samples, *middle);
  }
  return 0;  // the system takes back what a program holds at its end
}
