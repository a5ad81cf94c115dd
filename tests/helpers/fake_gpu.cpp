// A CUDA device that only exists in name, for a build of torch without CUDA: autograd and torch.compile need one that
// they can ask for its index and streams. See fake_gpu.py.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {
const Device DEVICE(DeviceType::CUDA, 0);
struct FakeGuard final : public DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::CUDA;
  FakeGuard() = default;
  explicit FakeGuard(DeviceType) {}
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return DEVICE; }
  Device getDevice() const override { return DEVICE; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, DEVICE); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, DEVICE); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void recordDataPtrOnStream(const DataPtr&, const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)
}  // namespace c10::impl

namespace at {
struct FakeHooks : public CUDAHooksInterface {
  FakeHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeHooks)
}  // namespace at
