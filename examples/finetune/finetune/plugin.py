"""What ``--import finetune.plugin`` gives to configs: two tasks and their models."""

from fedhyper.sim.registry import register_model, register_task
from finetune import data, model

register_task("sst2", model="minilm-lora")(data.sst2)
register_task("sst2-smoke", model="tiny-lora")(data.made_up)
# pretrained: weights stay as the function made them, and LoRA's B stays at zero
register_model("minilm-lora", reads=("characters",), pretrained=True)(model.minilm)
register_model("tiny-lora", reads=("characters",), pretrained=True)(model.tiny)
