// The safetensors format, strict in both directions. A file is an 8-byte little-endian length, a JSON header of that many bytes,
// and the tensors' bytes, which must follow each other without gap, overlap or rest.
#include <everglow/error.hpp>
#include <everglow/gnmt/safetensors.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

namespace everglow::gnmt {

namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian and tensors are written as they lie in memory");

using Json = nlohmann::json;
constexpr std::string_view save_where = "safetensors.save", load_where = "safetensors.load";
constexpr std::uint64_t header_limit = 100'000'000;  // as the format's own library
constexpr std::size_t tensor_alignment = 64;         // of each tensor in memory, whatever its place in the file

constexpr std::pair<std::string_view, DType> dtype_names[] = {{"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
                                                              {"F64", DType::f64}, {"I32", DType::i32}, {"I64", DType::i64},
                                                              {"U8", DType::u8}};

std::string_view name_in_file(DType dtype) {
  return std::find_if(std::begin(dtype_names), std::end(dtype_names), [&](const auto& entry) { return entry.second == dtype; })
      ->first;
}

[[noreturn]] void fail(std::string_view where, const std::string& file, const std::string& what) {
  throw Error(ErrorCode::io, where, fmt::format("{}: {}", file, what));
}

class Descriptor {
 public:
  Descriptor(const char* path, int flags) : fd_(::open(path, flags | O_CLOEXEC, 0666)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

bool write_all(int fd, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, at, std::min<std::size_t>(bytes, 1U << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

/// False with errno 0 where the file ends too early.
bool read_all(int fd, void* data, std::size_t bytes) {
  char* at = static_cast<char*>(data);
  errno = 0;
  while (bytes > 0) {
    const ssize_t got = ::read(fd, at, std::min<std::size_t>(bytes, 1U << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

std::size_t bytes_of(const ConstTensorView& view) { return static_cast<std::size_t>(view.elements()) * size_of(view.dtype); }

/// Largest elements first, so that each tensor lies at a multiple of its element size; then by name.
std::vector<const NamedTensor*> in_file_order(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) {
    const auto bad = [&](std::string_view what) {
      throw Error(ErrorCode::invalid_argument, save_where, fmt::format("tensor '{}': {}", tensor.name, what));
    };
    if (!tensor.view.given() || !tensor.view.dense() || tensor.view.device != Device::cpu())
      bad(fmt::format("expected a dense tensor on the CPU, got {}", to_string(tensor.view)));
    if (tensor.name == "__metadata__") bad("expected another name; this one is reserved by the format");
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const auto size_a = size_of(a->view.dtype), size_b = size_of(b->view.dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });
  return order;
}

std::string header_of(std::span<const NamedTensor* const> order, const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const ConstTensorView& view = tensor->view;
    if (header.contains(tensor->name))
      throw Error(ErrorCode::invalid_argument, save_where, fmt::format("tensor '{}': expected each name once", tensor->name));
    const std::uint64_t end = offset + bytes_of(view);
    header[tensor->name] = {{"dtype", name_in_file(view.dtype)},
                            {"shape", std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank)},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw Error(ErrorCode::invalid_argument, save_where, "names and metadata: expected UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // the tensors' bytes begin at a multiple of 8
  if (text.size() > header_limit)
    throw Error(ErrorCode::invalid_argument, save_where,
                fmt::format("names and metadata: expected a header of at most {} bytes, got {}", header_limit, text.size()));
  return text;
}

void write_file(const std::string& file, std::string_view header, std::span<const NamedTensor* const> order) {
  Descriptor out(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  if (out.get() < 0) fail(save_where, file, std::strerror(errno));
  const std::uint64_t length = header.size();
  bool good = write_all(out.get(), &length, sizeof length) && write_all(out.get(), header.data(), header.size());
  for (const NamedTensor* tensor : order) good = good && write_all(out.get(), tensor->view.data, bytes_of(tensor->view));
  good = good && ::fsync(out.get()) == 0 && out.close();
  if (!good) fail(save_where, file, std::strerror(errno));
}

/// JSON without doubled keys and without nesting that the format does not have (which keeps memory in bounds, too).
Json parse_header(const std::string& file, std::string_view text) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > 3) fail(load_where, file, "header: expected objects of objects, got deeper nesting");
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail(load_where, file, fmt::format("header: expected each name once, got '{}' twice", value.get<std::string>()));
    }
    return true;
  };
  try {
    Json header = Json::parse(text, check);
    if (!header.is_object()) fail(load_where, file, "header: expected a JSON object");
    return header;
  } catch (const Json::parse_error& error) {
    fail(load_where, file, fmt::format("header: expected JSON, got something else at byte {}", error.byte));
  } catch (const Json::exception&) {
    fail(load_where, file, "header: expected JSON of names, types, shapes and offsets");
  }
}

/// One entry of the header, checked in itself.
struct Entry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

std::vector<std::uint64_t> unsigned_numbers(const Json& entry, const char* key, const std::string& file, const std::string& what) {
  std::vector<std::uint64_t> numbers;
  if (!entry.contains(key) || !entry[key].is_array()) fail(load_where, file, fmt::format("{}: expected a list '{}'", what, key));
  for (const Json& number : entry[key]) {
    if (!number.is_number_unsigned() ||
        number.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      fail(load_where, file, fmt::format("{}: expected whole numbers of at least 0 in '{}', got {}", what, key, number.dump()));
    numbers.push_back(number.get<std::uint64_t>());
  }
  return numbers;
}

Entry parse_entry(const std::string& file, const std::string& name, const Json& json) {
  const std::string what = fmt::format("tensor '{}'", name);
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json["dtype"].is_string())
    fail(load_where, file, what + ": expected an object of dtype, shape and data_offsets");
  Entry entry;
  entry.name = name;
  const std::string& dtype = json["dtype"].get_ref<const std::string&>();
  const auto found =
      std::find_if(std::begin(dtype_names), std::end(dtype_names), [&](const auto& known) { return known.first == dtype; });
  if (found == std::end(dtype_names))
    fail(load_where, file, fmt::format("{}: dtype: expected F32, F16, BF16, F64, I32, I64 or U8, got '{}'", what, dtype));
  entry.dtype = found->second;
  auto extent = static_cast<std::int64_t>(size_of(entry.dtype));  // a size of 0 counts as 1: strides are products of the others
  for (const std::uint64_t size : unsigned_numbers(json, "shape", file, what)) {
    entry.shape.push_back(static_cast<std::int64_t>(size));
    if (__builtin_mul_overflow(extent, std::max<std::int64_t>(entry.shape.back(), 1), &extent))
      fail(load_where, file, what + ": shape: expected fewer elements");
  }
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  const std::uint64_t bytes = empty ? 0 : static_cast<std::uint64_t>(extent);
  if (entry.shape.size() > max_rank)
    fail(load_where, file, fmt::format("{}: shape: expected at most {} dimensions, got {}", what, max_rank, entry.shape.size()));
  const auto offsets = unsigned_numbers(json, "data_offsets", file, what);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] - offsets[0] != bytes)
    fail(load_where, file, fmt::format("{}: data_offsets: expected a beginning and an end that are {} bytes apart", what, bytes));
  entry.begin = offsets[0], entry.end = offsets[1];
  return entry;
}

/// The entries in order of their bytes, which must tile [0, bytes).
std::vector<Entry> parse_entries(const std::string& file, const Json& header, std::uint64_t bytes) {
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items())
    if (name != "__metadata__") entries.push_back(parse_entry(file, name, json));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at)
      fail(load_where, file,
           fmt::format("tensor '{}': data_offsets: expected to begin at byte {}, where the one before ends, got {}", entry.name, at,
                       entry.begin));
    at = entry.end;
  }
  if (at != bytes) fail(load_where, file, fmt::format("expected {} bytes of tensors, got {}", at, bytes));
  return entries;
}

std::map<std::string, std::string> parse_metadata(const std::string& file, const Json& header) {
  std::map<std::string, std::string> metadata;
  if (!header.contains("__metadata__")) return metadata;
  if (!header["__metadata__"].is_object()) fail(load_where, file, "__metadata__: expected an object of strings");
  for (const auto& [key, value] : header["__metadata__"].items()) {
    if (!value.is_string()) fail(load_where, file, fmt::format("__metadata__: expected a string for '{}'", key));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

std::string folder_of(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : file.substr(0, slash);
}

}  // namespace

void save_safetensors(const std::string& file, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) {
  const auto order = in_file_order(tensors);
  const std::string header = header_of(order, metadata);
  const std::string temporary = fmt::format("{}.{}.tmp", file, ::getpid());
  try {
    write_file(temporary, header, order);
    if (::rename(temporary.c_str(), file.c_str()) != 0) fail(save_where, file, std::strerror(errno));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::string folder = folder_of(file);
  const Descriptor entry(folder.c_str(), O_RDONLY | O_DIRECTORY);
  const bool synced = entry.get() >= 0 && ::fsync(entry.get()) == 0;
  if (!synced && errno != EINVAL && errno != ENOTSUP)
    fail(save_where, folder, std::strerror(errno));  // some file systems have no such call
}

SafetensorsFile::SafetensorsFile(const std::string& file) {
  const Descriptor in(file.c_str(), O_RDONLY);
  struct stat status {};
  if (in.get() < 0 || ::fstat(in.get(), &status) != 0) fail(load_where, file, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(load_where, file, "expected a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const auto read = [&](void* data, std::size_t bytes) {
    if (!read_all(in.get(), data, bytes))
      fail(load_where, file, errno ? std::strerror(errno) : "the file became shorter while it was read");
  };
  std::uint64_t length = 0;
  if (size < sizeof length) fail(load_where, file, fmt::format("expected at least 8 bytes, got {}", size));
  read(&length, sizeof length);
  const std::uint64_t allowed = std::min(header_limit, size - sizeof length);
  if (length > allowed)
    fail(load_where, file,
         fmt::format("expected a header of at most {} bytes, got a length of {}: truncated, or no safetensors file", allowed,
                     length));
  std::string text(length, '\0');
  read(text.data(), text.size());
  const Json header = parse_header(file, text);
  metadata_ = parse_metadata(file, header);
  const auto entries = parse_entries(file, header, size - sizeof length - length);

  const auto aligned = [](std::size_t bytes) { return (bytes + tensor_alignment - 1) / tensor_alignment * tensor_alignment; };
  std::size_t total = tensor_alignment;
  for (const Entry& entry : entries) total += aligned(entry.end - entry.begin);
  bytes_ = std::make_shared<std::vector<std::byte>>(total);
  std::size_t at = aligned(reinterpret_cast<std::uintptr_t>(bytes_->data())) - reinterpret_cast<std::uintptr_t>(bytes_->data());
  for (const Entry& entry : entries) {
    read(bytes_->data() + at, entry.end - entry.begin);
    tensors_[entry.name] = ConstTensorView(bytes_->data() + at, entry.dtype, std::span<const std::int64_t>(entry.shape));
    at += aligned(entry.end - entry.begin);
  }
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& entry : tensors_) names.push_back(entry.first);
  return names;
}

bool SafetensorsFile::has(const std::string& name) const { return tensors_.contains(name); }

ConstTensorView SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw Error(ErrorCode::io, load_where,
                fmt::format("expected a tensor '{}', got a file of {} other tensors", name, tensors_.size()));
  return found->second;
}

}  // namespace everglow::gnmt
