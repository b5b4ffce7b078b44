"""Has what depends on the device that a run is on: one place a concern, which all others ask.

==================  ========================================================  ==================================
concern             where                                                     on a GPU
==================  ========================================================  ==================================
random state        :mod:`suite.device.random_state`                          the device's generator beside torch's
pinned copies       :mod:`suite.device.pinned`                                through pinned memory, the host goes on
ranks               :mod:`suite.device.ranks`                                 NCCL, a GPU for each
clock, waiting      :mod:`suite.meters.clock`                                 waits for the device before it reads
events              ``device_time_s`` in :mod:`suite.kernels.bench`           between two events of the stream
memory statistics   :mod:`suite.meters.process`                               the caching allocator's peaks
energy              :mod:`suite.meters.energy`                                the board's counter
streams             ``_Lane`` in :mod:`suite.chain.tiers`                     a side stream each way, of that device
prefetch            ``Run.next_batch``                                        the next batch while this one trains
autocast            ``Run.autocast``; others ask torch with the tensor's device type
kernels' dispatch   ``launchable`` beside each kernel (shared: :mod:`suite.kernels.optimizer_parts`): Triton on CUDA
                    tensors that it takes, PyTorch's operators on all others
CUDA graphs         none are captured here; optimizers allow it (``GroupedOptimizer.counter_device``)
which operators     :mod:`suite.meters.gpu_operators`, for tensors without values
start               :mod:`suite.process.zygote` loads libraries and must not ask CUDA anything: a process
                    that forks after it has cannot use the GPU in its children
==================  ========================================================  ==================================

``tests/device`` runs every technique's steps and probes, and each concern, on a GPU that is pretended.
"""
