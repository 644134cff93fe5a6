"""In the manner of scripts for Hugging Face's Trainer: a tiny BERT from its configuration, evaluation at each epoch's end."""

import argparse
import time

import torch
import transformers
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 50, (count, 8), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        time.sleep(0.03)
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": int(tokens[0]) % 2}


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 2.0]))
        outputs["loss"] = loss
        kind = "batch" if model.training else "validation"
        print(f"epoch {int(self.state.epoch or 0)} {kind} {self.state.global_step} loss {loss.item().hex()}", flush=True)
        return (loss, outputs) if return_outputs else loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--output_dir", "--out", default=".")
    parser.add_argument("--num_train_epochs", type=float, default=3)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    training_args = TrainingArguments(
        output_dir=options.output_dir,
        num_train_epochs=options.num_train_epochs,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        dataloader_num_workers=2,
        learning_rate=1e-3,
        logging_strategy="epoch",
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=options.seed,
        disable_tqdm=True,
    )
    transformers.set_seed(options.seed)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    trainer = WeightedTrainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=Sentences(160, 0),
        eval_dataset=Sentences(32, 1),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    main()
