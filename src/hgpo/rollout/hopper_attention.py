"""FlashAttention 3 in CUDA graphs of whole steps: importing this module makes it vLLM's, in this process.

FlashAttention chooses how to compute a step by its longest query when it is launched, and a graph launches what was
chosen when it was captured. vLLM captures short queries, all of one length; for longer ones the kernel that puts split
attention together then leaves tokens out, and with a head size of up to 64, or above 128, the causal mask is missing
where one token each was captured (flash_fwd_combine_kernel.h and flash_api.cpp of vllm-project/flash-attention; seen on
a GPU, see docs/training.md; garbage after such replays was reported as pytorch/torchtitan #3668). Here vLLM says of
every step, when it is captured and when it is planned, that its longest query is as long as a step can be.
"""

from __future__ import annotations

from dataclasses import replace

from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend


class WholeStepBuilder(FlashAttentionMetadataBuilder):
    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> FlashAttentionMetadata:
        longest = self.vllm_config.scheduler_config.max_num_batched_tokens
        step = replace(common_attn_metadata, max_query_len=longest)
        return super().build(common_prefix_len, step, fast_build)


@register_backend(AttentionBackendEnum.FLASH_ATTN)
class WholeStepBackend(FlashAttentionBackend):
    @staticmethod
    def get_builder_cls() -> type[WholeStepBuilder]:
        return WholeStepBuilder
